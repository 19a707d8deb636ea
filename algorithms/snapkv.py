"""SnapKV: recent queries vote, pooling keeps the neighbours of what they vote for.

Formula: v_b <- decay * v_b + sum_h softmax_b(scale * q_h . mean k_b); s = maxpool(v).
Paper: Li et al. 2024, arXiv:2404.14469 (observation window, voting, pooling).
Blocks: the paper's window is the end of the prompt, counted once. Here the last decode steps vote, the
older the weaker (decay 0.94 is a window of about 16 queries), and block means stand for the tokens.
Recommended: a window of 16 to 64 queries, a pooling kernel of 5 to 13 tokens, 1024 to 4096 tokens kept.
"""

from vortex import *


class SnapKV(vFlow):
    decay = 0.94
    kernel = 3

    def forward_cache(self, c):
        c["centroids"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        p = Softmax(GeMM(c["centroids"], q.T) * self.scale, dim="block")
        c["votes"] = self.decay * c.get("votes", 0.0) + Sum(p, dim="head")
        return topK(MaxPool1d(c["votes"], size=self.kernel))
