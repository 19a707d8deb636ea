"""Channel groups: only some of 8 groups of the head dim carry the routing signal.

Formula: s_b = mean_h sum_g m_g * sum_{d in g} q_hd * mean_{t in b} k_td, with a weight m_g per layer and
KV head.
Paper: the heavy channels of Double Sparsity (Yang et al. 2024, arXiv:2408.07092) taken in groups of
neighbours, as RoPE's frequencies come.
Blocks: scored on mean keys.
Recommended: weights of 0 or 1 from a calibration run; without a file all groups count.
"""

from vortex import *


class ChannelGroups(vFlow):
    groups = 8

    def forward_cache(self, c):
        c["centroids"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        mask = Parameter("mask", f"layer kv group={self.groups}", init="ones")
        width = q.shape[-1] // self.groups
        key = Split(c["centroids"], "dim", group=self.groups, dim=width)
        query = Split(Mean(q, dim="head"), "dim", group=self.groups, dim=width)
        return topK(Sum(Sum(key * query, dim="dim") * mask, dim="group"))
