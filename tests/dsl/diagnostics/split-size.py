from vortex import *


class Example(vFlow):
    def forward_cache(c):
        halves = Split(c["k"], "token", half=2, token=16)  # <- Split(c["k"], "token", half=2, token=16)
        c["mean"] = Mean(halves, dim=("half", "token"))

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
