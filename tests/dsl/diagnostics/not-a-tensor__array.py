from vortex import *


import numpy as np

weights = np.ones(4)


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        return topK(Max(s * weights))  # <- s * weights
