from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["gram"] = GeMM(c["k"], c["k"].T)  # <- GeMM(c["k"], c["k"].T)

    def forward_indexer(q, c):
        return First(2)
