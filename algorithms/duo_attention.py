"""DuoAttention: retrieval heads search the context, streaming heads keep to the window.

Formula: s_b = max_h q_h . mean_{t in b} k_t if the KV head retrieves, else b.
Paper: Xiao et al. 2024, arXiv:2410.10819, head classes from an optimised gate.
Blocks: the paper's retrieval heads attend everything; here they select, and a streaming head spends the
same budget on its newest blocks.
Recommended: 25% of the heads retrieve in models without grouped queries, 50% with them; sinks of 64
tokens. Without a file every head retrieves.
"""

from vortex import *


class DuoAttention(vFlow):
    sink_blocks = 4

    def forward_cache(self, c):
        c["centroids"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        gate = Parameter("gate", "layer kv", init="ones")
        s = Max(GeMM(c["centroids"], q.T), dim="head")
        return topK(Where(gate > 0.5, s, Positions().index))
