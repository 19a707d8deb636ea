from vortex import *


class Example(vFlow):
    def forward_cache(c):
        parts = Split(c["k"], "token", part=-1, token=4)  # <- Split(c["k"], "token", part=-1, token=4)
        c["mean"] = Mean(parts, dim=("part", "token"))

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
