"""SeerAttention-R: a small learned gate scores the blocks.

Formula: K_b = [max k_b; min k_b; mean k_b] W_k; Q = sum_h q_h W_q^h; s_b = Q . K_b.
Paper: Gao et al. 2025, arXiv:2506.08889 (the decode gate); arXiv:2410.13276 (the pooling).
Blocks: the paper's gate reads q and k before RoPE and applies its own; here both come after RoPE. The
softmax over blocks is monotone and left out. W_k is stored as three matrices, one per pooling.
Recommended: blocks of 64 or 128, gate width 128, 4096 tokens in all. Without a trained file the weights
are random, which is a projection of the pooled keys.
"""

from vortex import *


class SeerAttention(vFlow):
    block_size = 64
    width = 64

    def weight(self, name, axes):
        return Parameter(name, f"layer kv {axes} gate={self.width}", init="normal", seed=0)

    def forward_cache(self, c):
        k = c["k"]
        high = GeMM(Max(k, dim="token"), self.weight("k_max", "dim"))
        low = GeMM(Min(k, dim="token"), self.weight("k_min", "dim"))
        middle = GeMM(Mean(k, dim="token"), self.weight("k_mean", "dim"))
        c["gate"] = high + low + middle

    def forward_indexer(self, q, c):
        query = Sum(q * self.weight("q", "head dim"), dim=("head", "dim"))
        return topK(Sum(c["gate"] * query, dim="gate"))
