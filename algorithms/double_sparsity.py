"""Double Sparsity: score every token by a few channels chosen offline.

Formula: s_b = max_{t in b} mean_h sum_{r in C} q_hr * k_tr, with C the heavy channels of this layer and
head.
Paper: Yang et al. 2024, arXiv:2408.07092 (label cache of the channels with the largest |q * k|).
Blocks: tokens are scored, the best token speaks for its block. One channel set serves the group.
Recommended: 1/16 to 1/8 of the channels, labels in 4 bits, a budget of 1/16 of the tokens. The channels
of a model come from a calibration run; without a file the first channels stand in.
"""

from vortex import *


class DoubleSparsity(vFlow):
    channels = 16

    def heavy(self):
        return Parameter("heavy", f"layer kv r={self.channels}", dtype="int32", init="arange")

    def forward_cache(self, c):
        c["label"] = Cast(Gather(c["k"], self.heavy(), dim="dim"), "int4")

    def forward_indexer(self, q, c):
        label_q = Gather(q, self.heavy(), dim="dim")
        s = GeMM(c["label"], label_q.T)
        return topK(Max(Mean(s, dim="head"), dim="token"))
