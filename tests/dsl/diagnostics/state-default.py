from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        c["acc"] = c.get("acc", q) + Max(s)  # <- c.get("acc", q)
        return topK(c["acc"])
