from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):
        s = GeMM(c["k"], q.T)  # <- GeMM(c["k"], q.T)
        return topK(Max(s, dim=("head", "token")))
