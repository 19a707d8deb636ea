from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = Max(GeMM(c["mean"], q.T))
        return Threshold(s, 0.5, k=8)  # <- Threshold(s, 0.5, k=8)
