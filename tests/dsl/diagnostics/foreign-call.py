from vortex import *


import torch


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = GeMM(c["mean"], q.T)
        return topK(torch.amax(s, -1))  # <- torch.amax(s, -1)
