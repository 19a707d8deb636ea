from vortex import *


class Example(vFlow):
    top = 8

    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(self, q, c):
        s = GeMM(c["mean"], q.T) * self.top
        return topK(Max(s), k=self.top_k)  # <- self.top_k
