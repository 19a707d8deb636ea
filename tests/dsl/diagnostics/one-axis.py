from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        return topK(CumSum(GeMM(c["mean"], q.T), dim=("block", "head")))  # <- CumSum(GeMM(c["mean"], q.T), dim=("block", "head"))
