from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        return topK(Max(Gather(s, Max(s))))  # <- Gather(s, Max(s))
