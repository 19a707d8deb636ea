from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["half"] = c["k"][:, ::2]

    def forward_indexer(q, c):
        keys = Merge(c["half"], "block", "token", to="place")  # <- Merge(c["half"], "block", "token", to="place")
        return topK(Max(GeMM(keys, q.T)))
