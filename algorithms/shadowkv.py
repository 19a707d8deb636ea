"""ShadowKV: landmarks find the blocks they describe well, outliers are always kept.

Formula: mu_b the mean key, r_b = min_{t in b} cos(k_t, mu_b). Attend the `outliers` blocks of smallest
r_b together with the blocks of largest max_h softmax_b(scale * q_h . mu_b).
Paper: Sun et al. 2024, arXiv:2410.21465, algorithms 1 and 2.
Blocks: the paper fixes the outliers at prefill; here they are the worst-described finished blocks of
every step. Low-rank keys and offloaded values are matters of storage and left out.
Recommended: chunks of 8, 48 outlier chunks, 1.56% of the tokens.
"""

from vortex import *


class ShadowKV(vFlow):
    block_size = 8
    budget = 256
    landmarks = 208
    outliers = 48

    def forward_cache(self, c):
        landmark = Mean(c["k"], dim="token")
        c["landmark"] = landmark
        c["fit"] = Min(Sum(Normalize(c["k"]) * Normalize(landmark), dim="dim"), dim="token")

    def forward_indexer(self, q, c):
        p = Softmax(GeMM(c["landmark"], q.T) * self.scale, dim="block")
        found = topK(Max(p, dim="head"), k=self.landmarks)
        return Union(found, topK(-c["fit"], k=self.outliers))
