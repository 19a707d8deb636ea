from vortex import *


class Example(vFlow):
    share_heads = "all"  # <- "all"

    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
