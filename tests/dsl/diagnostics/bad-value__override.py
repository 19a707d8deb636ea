# set: top=many
from vortex import *


class Example(vFlow):
    top = 8

    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(self, q, c):
        return topK(Max(GeMM(c["mean"], q.T)), k=self.top)  # <- file
