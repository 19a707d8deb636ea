"""LServe: hierarchical pages, small logical pages scored, large physical pages selected.

Formula: s_b = max_{j in b} max_h sum_d max(q_hd * M_jd, q_hd * m_jd) over the logical pages j of block b.
Paper: Yang et al. 2025, arXiv:2502.14866 (hierarchical paging and the reusable page selector).
Blocks: physical pages are our blocks, logical pages an axis of the entries. Its streaming heads are
another matter: duo_attention.py.
Recommended: physical pages of 64, logical pages of 16, a selection reused for 4 steps.
"""

from vortex import *


class LServe(vFlow):
    block_size = 64
    logical_pages = 4
    reuse_steps = 4

    def forward_cache(self, c):
        tokens = self.block_size // self.logical_pages
        pages = Split(c["k"], "token", page=self.logical_pages, token=tokens)
        c["max"] = Max(pages, dim="token")
        c["min"] = Min(pages, dim="token")

    def forward_indexer(self, q, c):
        bound = Sum(Maximum(q * c["max"], q * c["min"]), dim="dim")
        return topK(Max(bound, dim=("page", "head")))
