from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["copy"] = Normalize(c["k"])  # <- c["copy"]

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["copy"], q.T), dim=("head", "token")))
