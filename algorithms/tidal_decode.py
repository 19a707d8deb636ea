"""TidalDecode: select in a few layers, reuse the selection in the layers above.

Formula: s_b = max_h q_h . mean_{t in b} k_t in every `reuse_layers`-th layer; the others attend what it
chose.
Paper: Yang et al. 2024, arXiv:2410.05076 (position-persistent sparse attention).
Blocks: the selecting layers attend sparsely as well, where the paper's attend all keys and rank them
exactly.
Recommended: two dense layers first, a re-selection in the middle of the stack.
"""

from vortex import *


class TidalDecode(vFlow):
    dense_layers = "0,1"
    reuse_layers = 4

    def forward_cache(self, c):
        c["centroids"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        return topK(Max(GeMM(c["centroids"], q.T), dim="head"))
