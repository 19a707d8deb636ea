from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):
        return First(2)

    def forward_caches(c):  # <- def forward_caches
        c["mean"] = Mean(c["k"])
