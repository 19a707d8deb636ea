from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c[0] = Mean(c["k"])  # <- c[0]

    def forward_indexer(q, c):
        return First(2)
