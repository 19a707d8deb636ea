from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        near = Gather(s, Last(8))
        return topK(Max(Gather(near, First(4))))  # <- Gather(near, First(4))
