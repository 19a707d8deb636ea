from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        weight = (0.5, 1.0)[Max(q) > 0]  # <- (0.5, 1.0)[Max(q) > 0]
        return topK(Max(s) * weight)
