from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["centred"] = c["k"] - c["mean"]  # <- c["mean"]
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["centred"], q.T), dim=("head", "token")))
