from vortex import *


class Example(vFlow):
    def forward_cache(q, c):  # <- def forward_cache
        c["score"] = GeMM(c["k"], q.T)

    def forward_indexer(q, c):
        return First(2)
