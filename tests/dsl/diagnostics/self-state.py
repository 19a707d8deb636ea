from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(self, q, c):
        s = GeMM(c["mean"], q.T)
        self.total = Max(s)  # <- self.total
        return topK(Max(s))
