"""PQCache: keys as product-quantisation codes, scored by table lookup.

Formula: code_tm = argmin_j |k_tm - B_mj|^2 for each part m of the key; s_b = max_{t in b} mean_h sum_m
q_hm . B_m,code_tm.
Paper: Zhang et al. 2024, arXiv:2407.12820; Jegou et al. 2011, Product quantization for nearest neighbor
search.
Blocks: the paper clusters each prompt's keys; clustering per request is not in the language, so the
codebooks B are trained offline, per layer and KV head. The best token speaks for its block.
Recommended: 2 parts of 64 codes in the paper; 8 parts of 16 codes here. Without a file the codebooks are
random.
"""

from vortex import *


class ProductQuantization(vFlow):
    parts = 8
    codes = 16

    def split(self, x):
        return Split(x, "dim", part=self.parts, dim=x.shape[-1] // self.parts)

    def codebook(self, width):
        axes = f"layer kv part={self.parts} code={self.codes} dim={width}"
        return Parameter("codebook", axes, init="normal", seed=0)

    def forward_cache(self, c):
        k = self.split(c["k"])
        offset = k - self.codebook(k.shape[-1])
        c["code"] = ArgMin(Sum(offset * offset, dim="dim"), dim="code")

    def forward_indexer(self, q, c):
        query = self.split(Mean(q, dim="head"))
        table = Sum(query * self.codebook(query.shape[-1]), dim="dim")
        s = Sum(Gather(table, c["code"], dim="code"), dim="part")
        return topK(Max(s, dim="token"))
