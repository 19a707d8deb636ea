"""Scissorhands: importance persists; drop the blocks that were unimportant most often.

Formula: attend the blocks of smallest m_b; then m_b += 1 if p_b < 1/n, p_b the attention mass of block b
over the n finished blocks just attended, mean over heads; blocks left out are dropped for good.
Paper: Liu et al. 2023, arXiv:2305.17118, algorithm 2 (counters of scores below 1/t, recent window kept).
Blocks: the mass of a block replaces a token's score, 1/n its threshold. Counting starts at the first
decode step.
Recommended: history window 400, recent window 10 of a budget of 2048 tokens.
"""

from vortex import *


class Scissorhands(vFlow):
    budget = 64
    recent_blocks = 2

    def forward_indexer(self, q, c):
        rank = c.get("rank", 0.0)
        kept = topK(rank)
        s = GeMM(Gather(c["k"], kept), q.T) * self.scale
        p = Mean(Sum(Softmax(s, dim=("block", "token")), dim="token"), dim="head")
        miss = Where(p < Mean(p, dim="block"), 1.0, 0.0)
        c["rank"] = Scatter(Gather(rank, kept) - miss, fill=float("-inf"))
        return kept
