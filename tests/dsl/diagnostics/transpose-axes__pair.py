from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = Max(GeMM(c["mean"], q.T))
        return topK(s + Max(Max(Transpose(q, 1, 2))))  # <- Transpose(q, 1, 2)
