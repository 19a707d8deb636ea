"""Coarse to fine: score everything with sign bits, rescore the best candidates exactly.

Formula: B = the `candidates` blocks of largest max_{t in b} mean_h q_h . sign(k_t); s_b = max_{t in b}
mean_h q_h . k_t for b in B.
Paper: the two stages of asymmetric search with re-ranking (Jegou et al. 2011, Searching in one billion
vectors, arXiv:1102.3828), here on keys.
Blocks: the best token speaks for its block in both stages; the candidates count the reserved blocks.
Recommended: four times as many candidates as the budget.
"""

from vortex import *


class CoarseToFine(vFlow):
    budget = 32
    candidates = 128

    def forward_cache(self, c):
        c["sign"] = Cast(c["k"], "sign")

    def forward_indexer(self, q, c):
        query = Mean(q, dim="head")
        coarse = Max(Sum(c["sign"] * query, dim="dim"), dim="token")
        kept = topK(coarse, k=self.candidates)
        fine = Max(Sum(Gather(c["k"], kept) * query, dim="dim"), dim="token")
        return topK(fine)
