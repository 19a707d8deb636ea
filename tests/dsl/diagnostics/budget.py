from vortex import *


class Example(vFlow):
    budget = "max(32, 10% of blocks)"  # <- of

    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
