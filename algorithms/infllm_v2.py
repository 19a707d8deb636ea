"""InfLLM-V2: overlapping semantic kernels inside a block, summed over the group, best kernel counts.

Formula: kernel j = mean of two neighbouring quarters of the block; p_h = softmax_j(scale * q_h .
kernel_j) over all kernels; s_b = max_{j in b} sum_h p_hj.
Paper: Zhao et al. 2025, arXiv:2509.24663 (no parameters, shared over the group).
Blocks: kernels that cross a block's edge are left out: a summary sees one block.
Recommended: blocks of 64, kernels of 32 with stride 16, 96 blocks in all.
"""

from vortex import *


class InfLLMV2(vFlow):
    block_size = 64
    budget = 96

    def forward_cache(self, c):
        quarters = Mean(Split(c["k"], "token", kernel=4, token=self.block_size // 4), dim="token")
        c["kernels"] = (quarters[:, :3] + quarters[:, 1:]) / 2

    def forward_indexer(self, q, c):
        p = Softmax(GeMM(c["kernels"], q.T) * self.scale, dim=("block", "kernel"))
        return topK(Max(Sum(p, dim="head"), dim="kernel"))
