from vortex import *


class Example(vFlow):
    dense_layers = "0-1; 30"  # <- ;

    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
