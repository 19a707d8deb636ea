"""Block top-k on probabilities: softmax over the blocks, then the most interested head decides.

Formula: p_h = softmax_b(scale * q_h . mean_{t in b} k_t); s_b = max_h p_hb.
Paper: the score normalisation of SeerAttention (Gao et al. 2024, arXiv:2410.13276) with mean keys.
Blocks: the softmax runs over finished blocks. It makes heads of different scale comparable before the
maximum over the group.
Recommended: blocks of 16, 10% of the context.
"""

from vortex import *


class SoftmaxTopK(vFlow):
    def forward_cache(self, c):
        c["centroids"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        p = Softmax(GeMM(c["centroids"], q.T) * self.scale, dim="block")
        return topK(Max(p, dim="head"))
