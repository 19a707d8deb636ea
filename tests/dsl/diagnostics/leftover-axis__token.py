from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):
        return topK(Max(GeMM(c["k"], q.T)), dim=1)  # <- topK(Max(GeMM(c["k"], q.T)), dim=1)
