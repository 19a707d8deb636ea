"""Twilight: top-p instead of top-k, on a generous first selection.

Formula: B = the `candidates` blocks of largest Quest bound; p_h = softmax_t(scale * q_h . k4_t) over the
tokens of B, k4 the keys in 4 bits; w_b = mean_h sum_{t in b} p_ht; attend the fewest blocks of B with
total weight >= p.
Paper: Lin et al. 2025, arXiv:2502.02770 (select, then prune).
Blocks: the pruner works on the weight of blocks. Reserved blocks are always kept.
Recommended: p = 0.85 to 0.95, a first selection of 1/4 of the tokens, 4-bit keys.
"""

from vortex import *


class Twilight(vFlow):
    budget = "25% * blocks"
    p = 0.9

    def forward_cache(self, c):
        c["max"] = Max(c["k"], dim="token")
        c["min"] = Min(c["k"], dim="token")
        c["k4"] = Cast(c["k"], "int4")

    def forward_indexer(self, q, c):
        bound = Sum(Maximum(q * c["max"], q * c["min"]), dim="dim")
        candidates = topK(Max(bound, dim="head"))
        s = GeMM(Gather(c["k4"], candidates), q.T) * self.scale
        p = Softmax(s, dim=("block", "token"))
        return topP(Mean(Sum(p, dim="token"), dim="head"), p=self.p)
