"""InfLLM: a few representative tokens stand for a block.

Formula: R_b = the r tokens of largest k_t . mean_{u in b} k_u; s_b = sum_h sum_{t in R_b} q_h . k_t.
Paper: Xiao et al. 2024, arXiv:2402.04617 (representative score and block relevance).
Blocks: the paper ranks tokens by the queries of the local window. A block's summary knows no queries, so
its own mean key ranks them.
Recommended: blocks of 128 with 4 representatives, a local window of 4096 tokens.
"""

from vortex import *


class InfLLM(vFlow):
    block_size = 128
    representatives = 4

    def forward_cache(self, c):
        k = c["k"]
        score = Sum(k * Mean(k, dim="token"), dim="dim")
        c["representatives"] = Gather(k, topK(score, dim="token", k=self.representatives))

    def forward_indexer(self, q, c):
        return topK(Sum(GeMM(c["representatives"], q.T), dim=("token", "head")))
