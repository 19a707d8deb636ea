"""Quest with 8-bit boxes and the mean bound of the group.

Formula: s_b = mean_h sum_d max(q_hd * M_bd, q_hd * m_bd), M and m the int8 roundings of the block's
maxima and minima.
Paper: Tang et al. 2024, arXiv:2406.10774.
Blocks: as quest.py. Rounding may undercut the bound by half a step of max|k| / 127.
Recommended: pages of 16, a budget of 1024 to 2048 tokens, the first two layers dense.
"""

from vortex import *


class QuestInt8(vFlow):
    def forward_cache(self, c):
        c["max"] = Cast(Max(c["k"], dim="token"), "int8")
        c["min"] = Cast(Min(c["k"], dim="token"), "int8")

    def forward_indexer(self, q, c):
        bound = Maximum(q * c["max"], q * c["min"])
        return topK(Mean(Sum(bound, dim="dim"), dim="head"))
