"""DeepSeek's lightning indexer: a few cheap ReLU heads score every token.

Formula: I_t = sum_j w_j * relu(q^I_j . k^I_t), k^I stored in fp8; attend the tokens of largest I_t.
Paper: DeepSeek-AI 2025, DeepSeek-V3.2-Exp, eq. 1.
Blocks: block_size 1 selects tokens; with larger blocks the best token speaks for its block. The paper
projects q^I, k^I and w from hidden states; here they are projections of q and k after RoPE, one indexer
head per query head. Summed over the KV heads they make one selection for all, as there.
Recommended: 64 indexer heads of width 128, 2048 tokens.
"""

from vortex import *


class LightningIndexer(vFlow):
    block_size = 1
    budget = 2048
    share_heads = "sum"
    width = 32

    def forward_cache(self, c):
        project = Parameter("index_k", f"layer kv dim r={self.width}", init="normal", seed=0)
        c["index_k"] = Cast(GeMM(c["k"], project), "fp8")

    def forward_indexer(self, q, c):
        project = Parameter("index_q", f"layer kv dim r={self.width}", init="normal", seed=1)
        weight = Sum(q * Parameter("weight", "layer kv head dim", init="normal", seed=2), dim="dim")
        s = Relu(GeMM(c["index_k"], GeMM(q, project).T)) * weight
        return topK(Max(Sum(s, dim="head"), dim="token"))
