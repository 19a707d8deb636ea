from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(Rename(c["k"]))  # <- Rename(c["k"])

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
