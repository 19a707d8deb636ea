from vortex import *


class Example(vFlow):
    bugdet = 64  # <- 64

    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
