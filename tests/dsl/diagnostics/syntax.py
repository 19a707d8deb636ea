from vortex import *


class Example(vFlow):
    def forward_indexer(q, c):
        return topK(Max(q)  # <- (
