from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):
        return topK(Max(q, dim="head"), dim="dim", k=8)  # <- topK(Max(q, dim="head"), dim="dim", k=8)
