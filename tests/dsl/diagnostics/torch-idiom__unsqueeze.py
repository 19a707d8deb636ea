from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = Sum(c["mean"].unsqueeze(2) * q)  # <- c["mean"].unsqueeze
        return topK(Max(s))
