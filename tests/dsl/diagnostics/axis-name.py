from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(Rename(c["k"], token="my token"))  # <- Rename(c["k"], token="my token")

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
