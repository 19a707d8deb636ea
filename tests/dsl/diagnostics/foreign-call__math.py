from vortex import *


import math


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        return topK(Max(s * math.sqrt(Max(q))))  # <- math.sqrt(Max(q))
