from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["total"] = Cast(Sum(Sum(c["k"])), "int8")  # <- Cast(Sum(Sum(c["k"])), "int8")

    def forward_indexer(q, c):
        return topK(c["total"])
