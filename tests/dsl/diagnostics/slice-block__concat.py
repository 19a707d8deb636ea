from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = Max(GeMM(c["mean"], q.T))
        return topK(Concat(s, -s, dim="block"))  # <- Concat(s, -s, dim="block")
