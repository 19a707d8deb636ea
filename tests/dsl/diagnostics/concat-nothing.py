from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(Concat(dim="token"))  # <- Concat(dim="token")

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
