from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])
        c["max"] = Max(c["k"])  # <- c["max"]

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
