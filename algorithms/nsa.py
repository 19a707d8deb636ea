"""NSA: selection scored by a learned compression branch on finer blocks.

Formula: ktilde_j = sum_t w_t * (k_t + e_t) over compression block j; p_h = softmax_j(scale * q_h .
ktilde_j) over all j; s_b = sum_h sum_{j in b} p_hj.
Paper: Yuan et al. 2025, arXiv:2502.11089, eqs. 7 to 11.
Blocks: compression blocks do not overlap and divide the selection block, so eq. 9 is the sum over j in b.
The compression MLP is its linear core: weights w over positions and a position embedding e, both
Parameters. Of the three branches only selected attention is computed: several outputs combined are not in
the language.
Recommended: compression blocks of 32 with stride 16, selection blocks of 64, 16 of them, 1 initial and 2
local.
"""

from vortex import *


class NSA(vFlow):
    block_size = 64
    budget = 16
    sink_blocks = 1
    recent_blocks = 1
    compression = 16

    def forward_cache(self, c):
        parts = self.block_size // self.compression
        k = Split(c["k"], "token", part=parts, token=self.compression)
        position = Parameter("position", f"layer kv token={self.compression} dim", init="normal", seed=0)
        weight = Parameter("weight", f"layer kv token={self.compression}", init="normal", seed=1)
        mix = Softmax(weight, dim="token")
        c["compressed"] = Sum(mix * (k + position), dim="token")

    def forward_indexer(self, q, c):
        p = Softmax(GeMM(c["compressed"], q.T) * self.scale, dim=("block", "part"))
        return topK(Sum(p, dim=("part", "head")))
