from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        w = Parameter("w", "token=128 head", init="normal")
        s = GeMM(c["mean"], w)  # <- GeMM(c["mean"], w)
        return topK(Max(s))
