from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):
        if "seen" in c:  # <- "seen" in c
            return First(2)
        return Last(2)
