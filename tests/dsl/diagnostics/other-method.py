from vortex import *


kept = []


class Example(vFlow):
    def forward_cache(c):
        kept.append(Mean(c["k"]))

    def forward_indexer(q, c):
        s = GeMM(kept[0], q.T)  # <- GeMM(kept[0], q.T)
        return topK(Max(s))
