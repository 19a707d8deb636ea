from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        c["acc"] = Maximum(c.get("acc", 0.0), c.get("acc", -1.0)) + Max(s)  # <- c.get("acc", -1.0)
        return topK(c["acc"])
