"""Flows that show an engine's mistakes."""

from vortex import *


class Remembering(vFlow):
    """Entries of each block and a state of each request decide together: a wrong one of either changes ids."""

    block_size = 8
    budget = 4

    def forward_cache(c):
        c["max"] = Max(c["k"])
        c["min"] = Min(c["k"])

    def forward_indexer(self, q, c):
        bound = Max(Sum(Maximum(q * c["max"], q * c["min"])))
        c["seen"] = 0.7 * c["seen"] + Softmax(bound * self.scale)
        return topK(c["seen"])


class Everything(vFlow):
    """Selects every block, by number: what is attended is all, and nothing is attended densely."""

    block_size = 8
    budget = 1

    def forward_cache(c):
        c["max"] = Max(c["k"])

    def forward_indexer(q, c):
        return topK(Max(Sum(q * c["max"])), k=4096)


class Weighed(vFlow):
    """Each layer and KV head has a parameter of its own."""

    block_size = 8
    budget = 4
    w = Parameter("w", "layer kv dim", init="normal", seed=5)

    def forward_cache(c):
        c["mean"] = Mean(c["k"], dim=1)

    def forward_indexer(self, q, c):
        return topK(Max(Sum(c["mean"] * q * self.w)))
