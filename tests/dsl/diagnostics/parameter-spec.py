from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        w = Parameter("w", "dim r", init="normal")
        s = GeMM(GeMM(c["mean"], w), q.T)  # <- GeMM(c["mean"], w)
        return topK(Max(s))
