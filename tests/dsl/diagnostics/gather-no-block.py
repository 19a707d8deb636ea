from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        near = Gather(q, topK(Max(s)))  # <- Gather(q, topK(Max(s)))
        return topK(Max(GeMM(c["mean"], near.T)))
