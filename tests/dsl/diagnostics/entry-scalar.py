from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])
        c["seen"] = 0.0  # <- c["seen"]

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        c["seen"] = c.get("seen", 0.0) + Max(s)
        return topK(c["seen"])
