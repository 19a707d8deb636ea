from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        i = topK(Max(s))
        j = topK(Mean(s, dim="head"))  # <- topK(Mean(s, dim="head"))
