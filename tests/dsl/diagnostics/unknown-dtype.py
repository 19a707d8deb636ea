from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Cast(Mean(c["k"]), "bfloat16")  # <- Cast(Mean(c["k"]), "bfloat16")

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
