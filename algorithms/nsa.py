"""NSA: selection scored by a learned compression branch on finer blocks.

Formula: ktilde_j = mean_t (k_t + silu((k_t + e_t) U) D) over compression block j; p_h = softmax_j(scale *
q_h . ktilde_j) over all j; s_b = sum_h sum_{j in b} p_hj.
Paper: Yuan et al. 2025, arXiv:2502.11089, eqs. 7 to 11.
Blocks: compression blocks do not overlap and divide the selection block, so eq. 9 is the sum over j in b.
The compression MLP works token by token beside the mean; without a trained file its last matrix is zero
and the mean is left. Of the three branches only selected attention is computed: several outputs combined
are not in the language.
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
    hidden = 64

    def forward_cache(self, c):
        parts = self.block_size // self.compression
        k = Split(c["k"], "token", part=parts, token=self.compression)
        position = Parameter("position", f"layer kv token={self.compression} dim", init="normal", seed=0)
        up = Parameter("up", f"layer kv dim hidden={self.hidden}", init="normal", seed=1)
        down = Parameter("down", f"layer kv hidden={self.hidden} dim", init="zeros")
        learned = GeMM(Silu(GeMM(k + position, up)), down)
        c["compressed"] = Mean(k + learned, dim="token")

    def forward_indexer(self, q, c):
        p = Softmax(GeMM(c["compressed"], q.T) * self.scale, dim=("block", "part"))
        return topK(Sum(p, dim=("part", "head")))
