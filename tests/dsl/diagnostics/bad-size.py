from vortex import *


class Example(vFlow):
    def forward_cache(c):
        parts = Split(c["k"], "token", part=0, token=16)  # <- Split(c["k"], "token", part=0, token=16)
        c["mean"] = Mean(parts, dim=("part", "token"))

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
