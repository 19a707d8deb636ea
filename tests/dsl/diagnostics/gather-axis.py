from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        channels = topK(Abs(q[:, 0]), dim="dim", k=16)
        s = Gather(Max(c["mean"]), channels)  # <- Gather(Max(c["mean"]), channels)
        return topK(s)
