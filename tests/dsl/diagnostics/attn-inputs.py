from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        i = topK(Max(s))
        return attn(q * 2, c["k"], c["v"], i)  # <- attn(q * 2, c["k"], c["v"], i)
