from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = Max(GeMM(c["mean"], q.T))
        c["level"] = 0.9 * c["level"] + 0.1 * Mean(s, dim="block")  # <- Mean(s, dim="block")
        return Threshold(s, c["level"])
