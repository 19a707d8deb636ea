from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"]) / (1 + Positions().index)  # <- Positions().index

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
