from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        best = ArgMax(q, dim="dim")
        return topK(Max(Gather(c["mean"], best)))  # <- Gather(c["mean"], best)
