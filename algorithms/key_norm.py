"""Key norm: keys of small norm attract attention.

Formula: s_b = - mean_{t in b} |k_t|.
Paper: Devoto et al. 2024, arXiv:2406.11430.
Blocks: the mean norm of the block decides; one number a block is all that is stored. The query plays no
part.
Recommended: half of the context, the first two layers dense.
"""

from vortex import *


class KeyNorm(vFlow):
    budget = "50% * blocks"
    dense_layers = "0,1"

    def forward_cache(self, c):
        c["norm"] = Mean(L2Norm(c["k"], dim="dim"), dim="token")

    def forward_indexer(self, q, c):
        return topK(-c["norm"])
