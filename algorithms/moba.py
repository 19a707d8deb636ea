"""MoBA: a mixture of block attention, here once per KV head.

Formula: s_b = sum_h q_h . mean_{t in b} k_t; attend the `top` best blocks, the current one among them.
Paper: Lu et al. 2025, arXiv:2502.13189, eqs. 4 to 6.
Blocks: the paper gates every query head on its own; per-query-head selection is not in the language, so
the group gates together. The current block counts towards `top`, as there.
Recommended: blocks of 512 and top 3 when trained; blocks of 4096 and top 12 at 1M tokens.
"""

from vortex import *


class MoBA(vFlow):
    block_size = 512
    budget = 3
    sink_blocks = 0
    recent_blocks = 0
    top = 3

    def forward_cache(self, c):
        c["centroids"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        gate = GeMM(c["centroids"], q.T)
        return topK(Sum(gate, dim="head"), dim="block", k=self.top)
