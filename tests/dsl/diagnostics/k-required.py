from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        channels = topK(Abs(Mean(q, dim="head")), dim="dim")  # <- topK(Abs(Mean(q, dim="head")), dim="dim")
        return topK(Sum(Gather(c["mean"], channels)))
