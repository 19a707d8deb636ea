"""SparQ: read only the key channels in which the query is large.

Formula: C = the r channels of largest sum_h |q_hd|; p_h = softmax_t(q_h[C] . k_t[C] / tau_h) with tau_h =
sqrt(dim * |q_h[C]|_1 / |q_h|_1); s_b = sum_h sum_{t in b} p_ht.
Paper: Ribar et al. 2023, arXiv:2312.04985, algorithm 1.
Blocks: one channel set for the group, as the paper does for grouped queries. Token probabilities are
summed per block. The mean-value correction of step 3 combines two outputs and is left out.
Recommended: r = dim/4 to dim/2 channels, 128 tokens, the last tokens always kept.
"""

from vortex import *


class SparQ(vFlow):
    channels = 16

    def forward_indexer(self, q, c):
        top = topK(Sum(Abs(q), dim="head"), dim="dim", k=self.channels)
        part = Gather(q, top)
        covered = Sum(Abs(part), dim="dim") / Sum(Abs(q), dim="dim")
        s = GeMM(Gather(c["k"], top), part.T) * self.scale * Rsqrt(covered)
        p = Softmax(s, dim=("block", "token"))
        return topK(Sum(p, dim=("token", "head")))
