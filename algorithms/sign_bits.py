"""Sign-bit keys: one bit a channel, and one scale a channel and block.

Formula: s_b = max_{t in b} mean_h (q_h * a_b) . sign(k_t), with a_b = mean_{t in b} |k_t|.
Paper: the binary weights of XNOR-Net (Rastegari et al. 2016, arXiv:1603.05279, eq. 6) applied to keys;
HATA (Gong et al. 2025, arXiv:2506.02572) ranks keys by learned bits in the same way.
Blocks: scale per channel and block instead of one per key; the best token speaks for its block.
Recommended: blocks of 16 to 32, 10% of the context.
"""

from vortex import *


class SignBits(vFlow):
    def forward_cache(self, c):
        c["sign"] = Cast(c["k"], "sign")
        c["scale"] = Mean(Abs(c["k"]), dim="token")

    def forward_indexer(self, q, c):
        query = Mean(q, dim="head") * c["scale"]
        s = Sum(c["sign"] * query, dim="dim")
        return topK(Max(s, dim="token"))
