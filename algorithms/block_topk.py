"""Block top-k: score every block by its mean key.

Formula: s_b = mean_h q_h . mean_{t in b} k_t; attend the blocks of largest s_b.
Paper: the training-free form of MoBA's gate (Lu et al. 2025, arXiv:2502.13189, eq. 6) and of NSA's block
selection (Yuan et al. 2025, arXiv:2502.11089).
Blocks: MoBA lets each query head choose; here the mean over the group chooses once per KV head.
Recommended: blocks of 16 to 64, a budget of 10% of the context.
"""

from vortex import *


class BlockTopK(vFlow):
    def forward_cache(c):
        c["centroids"] = Mean(c["k"], dim=1)

    def forward_indexer(q, c):
        s = GeMM(c["centroids"], q.T)
        i = topK(Mean(s, dim=2), dim=1)
        return attn(q, c["k"], c["v"], i)
