from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):
        acc = c["acc"]
        acc = acc if len(acc.shape) > 1 else Max(q, dim="head")
        c["acc"] = Concat(acc, acc, dim="dim")  # <- c["acc"]
        return First(2)
