"""KeyDiff: keep the keys that point away from the others.

Formula: a = mean of all k_t / |k_t|; s_b = - mean_{t in b} cos(k_t, a).
Paper: Park et al. 2025, arXiv:2504.15364.
Blocks: a block's mean similarity decides. The anchor is the mean over finished blocks; the query plays no
part.
Recommended: 8192 tokens in the paper; here a quarter of the context.
"""

from vortex import *


class KeyDiff(vFlow):
    budget = "25% * blocks"

    def forward_cache(self, c):
        c["direction"] = Mean(Normalize(c["k"]), dim="token")

    def forward_indexer(self, q, c):
        anchor = Normalize(Mean(c["direction"], dim="block"))
        return topK(-Sum(c["direction"] * anchor, dim="dim"))
