from vortex import *


class Example(vFlow):
    def forward_cache(c):
        flat = Merge(c["k"], "token", to="flat")  # <- Merge(c["k"], "token", to="flat")
        c["mean"] = Mean(flat)

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
