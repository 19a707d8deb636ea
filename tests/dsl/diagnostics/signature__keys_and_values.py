from vortex import *


class Example(vFlow):
    def forward_cache(k, v):  # <- def forward_cache
        c["mean"] = Mean(k)

    def forward_indexer(q, c):
        return First(2)
