from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])
        c["k"] = Normalize(c["k"])  # <- c["k"]

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
