"""Loki: keys have low rank, so score with their leading principal components.

Formula: s_b = max_{t in b} mean_h (q_h P) . (k_t P), with P [dim, r] the leading principal directions of
the keys.
Paper: Singhania et al. 2024, arXiv:2406.02542, algorithm 1.
Blocks: tokens are scored, the best token speaks for its block.
Recommended: r = dim/4, 1/4 to 1/8 of the tokens. P comes from a calibration run; without a file a random
projection stands in.
"""

from vortex import *


class Loki(vFlow):
    rank = 16

    def components(self):
        return Parameter("components", f"layer kv dim r={self.rank}", init="normal", seed=0)

    def forward_cache(self, c):
        c["low"] = GeMM(c["k"], self.components())

    def forward_indexer(self, q, c):
        s = GeMM(c["low"], GeMM(q, self.components()).T)
        return topK(Max(Mean(s, dim="head"), dim="token"))
