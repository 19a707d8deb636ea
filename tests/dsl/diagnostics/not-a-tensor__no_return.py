from vortex import *


def scaled(s):
    s * 2


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        return topK(Sum(scaled(s)))  # <- Sum(scaled(s))
