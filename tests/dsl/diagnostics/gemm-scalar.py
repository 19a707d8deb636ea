from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], 2.0)  # <- GeMM(c["mean"], 2.0)
        return topK(Max(s))
