from vortex import *


class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        s = Max(GeMM(c["mean"], q.T))
        return topK(Conv1d(s, Parameter("w", "layer kv width=3", init="ones")))  # <- Conv1d(s, Parameter("w", "layer kv width=3", init="ones"))
