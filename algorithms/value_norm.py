"""VATP: attention weight times the size of the value.

Formula: s_b = sum_h softmax_b(scale * q_h . mean k_b) * mean_{t in b} |v_t|_1.
Paper: Guo et al. 2024, arXiv:2406.12335 (value-aware token pruning).
Blocks: the block's mean key and mean value norm stand for its tokens. The paper exempts the first tokens,
which have tiny values but much attention: sink_blocks = 1.
Recommended: on top of H2O or Scissorhands at 50% of the budget.
"""

from vortex import *


class ValueNorm(vFlow):
    sink_blocks = 1

    def forward_cache(self, c):
        c["centroids"] = Mean(c["k"], dim="token")
        c["size"] = Mean(Sum(Abs(c["v"]), dim="dim"), dim="token")

    def forward_indexer(self, q, c):
        p = Softmax(GeMM(c["centroids"], q.T) * self.scale, dim="block")
        return topK(Sum(p, dim="head") * c["size"])
