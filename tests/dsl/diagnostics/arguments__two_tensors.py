from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        return topK(Max(Sum(Max(q * c["mean"], q))))  # <- Max(q * c["mean"], q)
