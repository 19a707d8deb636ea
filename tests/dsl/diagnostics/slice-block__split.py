from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        pairs = Split(c["mean"], "block", block=-1, pair=2)  # <- Split(c["mean"], "block", block=-1, pair=2)
        return topK(Max(GeMM(Max(pairs, dim="pair"), q.T)))
