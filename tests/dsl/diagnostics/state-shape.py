from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):
        c["a"] = c.get("a", 0.0)  # <- c["a"]
        return topK(c["a"])
