"""Smoothed relevance: a block lends part of its score to its neighbours.

Formula: s = conv(p, [1/4, 1/2, 1/4]) along the blocks, p_b = max_h softmax_b(scale * q_h . mean k_b),
zero outside.
Paper: the clustering by pooling of SnapKV (Li et al. 2024, arXiv:2404.14469) as a weighted mean.
Blocks: the kernel covers three blocks instead of a few tokens.
Recommended: blocks of 16, 10% of the context.
"""

from vortex import *


class Smooth(vFlow):
    def forward_cache(self, c):
        c["centroids"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        p = Softmax(GeMM(c["centroids"], q.T) * self.scale, dim="block")
        return topK(Conv1d(Max(p, dim="head"), [0.25, 0.5, 0.25]))
