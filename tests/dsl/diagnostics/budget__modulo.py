from vortex import *


class Example(vFlow):
    budget = "16 + 8 * (layer % 4)"  # <- %

    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
