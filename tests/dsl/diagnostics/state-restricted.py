from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        i = topK(Max(s))
        c["acc"] = Gather(Max(s), i)  # <- c["acc"]
        return i
