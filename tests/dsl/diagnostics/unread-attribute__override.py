# set: bits=64
from vortex import *


class Example(vFlow):  # <- file
    bits = 32

    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
