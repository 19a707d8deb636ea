from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["score"] = GeMM(c["k"], c["q"].T)  # <- c["q"]

    def forward_indexer(q, c):
        return First(2)
