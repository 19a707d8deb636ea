"""PyramidKV: lower layers keep more blocks than upper ones.

Formula: budget of layer l = first - (first - last) * l / (layers - 1), an arithmetic sequence of mean B
with last = B / beta and first = 2B - last; the score is SnapKV's vote of the newest query.
Paper: Cai et al. 2024, arXiv:2406.02069 (layer-wise budgets).
Blocks: B = 64 blocks and beta = 20, so 124.8 down to 3.2 blocks. Block means stand for tokens.
Recommended: beta = 20; 64 to 2048 tokens a layer on average.
"""

from vortex import *


class PyramidKV(vFlow):
    budget = "124.8 - 121.6 * layer / max(1, layers - 1)"
    kernel = 3

    def forward_cache(self, c):
        c["centroids"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        p = Softmax(GeMM(c["centroids"], q.T) * self.scale, dim="block")
        return topK(MaxPool1d(Sum(p, dim="head"), size=self.kernel))
