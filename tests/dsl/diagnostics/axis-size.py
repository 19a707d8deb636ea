from vortex import *


class Example(vFlow):
    def forward_cache(c):
        halves = Split(c["k"], "dim", half=2, dim=64)
        c["x"] = Sum(halves * c["k"], dim="half")  # <- halves * c["k"]

    def forward_indexer(q, c):
        return First(2)
