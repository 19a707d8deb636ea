from vortex import *


class Example(vFlow):
    bits = 32  # <- 32

    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
