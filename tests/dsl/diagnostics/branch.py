from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        if Max(s) > 0:  # <- Max(s) > 0
            s = s * 2
        return topK(Max(s))
