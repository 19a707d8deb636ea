"""MagicPIG: LSH signatures, keys that collide with the query in at least two tables.

Formula: sign bits of x . A in `tables` tables of `bits` bits; a token is sampled by head h when in at
least 2 tables all bits of k_t and q_h agree; s_b = number of (token, head) pairs sampled.
Paper: Chen et al. 2024, arXiv:2410.16179, algorithm 1.
Blocks: the paper's estimator weights a sampled token by its probability; here the counts rank blocks,
which are then attended exactly, and equal counts fall to the lower block. Keys are not centred.
Recommended: K = 10 bits, L = 150 tables; fewer here, 128 bits a token, because the signature is read each
step.
"""

from vortex import *


class MagicPIG(vFlow):
    tables = 32
    bits = 4

    def signature(self, x):
        planes = Parameter(
            "planes", f"layer kv dim table={self.tables} bit={self.bits}", init="normal", seed=0
        )
        return Cast(Sum(x * planes, dim="dim"), "sign")

    def forward_cache(self, c):
        c["signature"] = self.signature(c["k"])

    def forward_indexer(self, q, c):
        agreement = Sum(c["signature"] * self.signature(q), dim="bit")
        collisions = Sum(Where(agreement == self.bits, 1.0, 0.0), dim="table")
        sampled = Where(collisions >= 2, 1.0, 0.0)
        return topK(Sum(sampled, dim=("token", "head")))
