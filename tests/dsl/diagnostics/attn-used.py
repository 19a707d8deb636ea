from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        i = topK(Max(s))
        return attn(q, c["k"], c["v"], i) * 0.5  # <- attn(q, c["k"], c["v"], i) * 0.5
