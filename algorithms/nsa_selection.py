"""NSA, selection branch: the probabilities of compressed attention rank the blocks.

Formula: p_h = softmax_b(scale * q_h . phi(k_b)); s_b = sum_h p_hb, with phi the mean of the block's keys.
Paper: Yuan et al. 2025, arXiv:2502.11089, eqs. 8 to 11.
Blocks: compression and selection blocks coincide, so eq. 9 is the identity. phi is the untrained mean;
nsa.py has the learned one on finer blocks.
Recommended: blocks of 64, 16 of them in all, among these 1 initial and 2 local.
"""

from vortex import *


class NSASelection(vFlow):
    block_size = 64
    budget = 16
    sink_blocks = 1
    recent_blocks = 1

    def forward_cache(self, c):
        c["compressed"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        p = Softmax(GeMM(c["compressed"], q.T) * self.scale, dim="block")
        return topK(Sum(p, dim="head"))
