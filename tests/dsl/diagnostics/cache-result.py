from vortex import *


class Example(vFlow):
    def forward_cache(c):  # <- def forward_cache
        return Mean(c["k"])

    def forward_indexer(q, c):
        return First(2)
