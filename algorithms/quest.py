"""Quest: an upper bound of q . k over each block, from the box that holds the block's keys.

Formula: s_b = max_h sum_d max(q_hd * max_t k_td, q_hd * min_t k_td).
Paper: Tang et al. 2024, arXiv:2406.10774.
Blocks: Quest's pages are our blocks. It chooses per query head; here the largest bound of the group
decides once per KV head.
Recommended: pages of 16, a budget of 1024 to 2048 tokens, the first two layers dense
(`dense_layers="0,1"`).
"""

from vortex import *


class Quest(vFlow):
    def forward_cache(c):
        c["max"] = Max(c["k"])
        c["min"] = Min(c["k"])

    def forward_indexer(q, c):
        s = Maximum(q * c["max"], q * c["min"])
        i = topK(Max(Sum(s)))
