from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])
        c["mean"] = Mean(c["k"], dim=("token", "dim"))  # <- c["mean"]

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
