"""ArkVale: bound q . k by the ball around the block's keys.

Formula: s_b = max_h (q_h . mu_b + |q_h| * r_b), mu_b the mean key of the block and r_b the largest
distance from it.
Paper: Chen et al. 2024, ArkVale (NeurIPS 2024): page digests by bounding volumes, here the sphere.
Blocks: ArkVale's pages are our blocks; recall of evicted pages is simply selection.
Recommended: pages of 32, a budget of 2048 to 4096 tokens, the first two layers dense.
"""

from vortex import *


class ArkVale(vFlow):
    block_size = 32

    def forward_cache(self, c):
        center = Mean(c["k"], dim="token")
        c["center"] = center
        c["radius"] = Max(L2Norm(c["k"] - center, dim="dim"), dim="token")

    def forward_indexer(self, q, c):
        bound = GeMM(c["center"], q.T) + c["radius"] * L2Norm(q, dim="dim")
        return topK(Max(bound, dim="head"))
