from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        top = Max(s, dim="head").item()  # <- Max(s, dim="head").item
        return topK(Max(s) - top)
