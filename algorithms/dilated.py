"""Dilated: a dense local window and every `stride`-th block behind it.

Formula: attend block b if its distance from the end is below `local` or a multiple of `stride`.
Paper: Child et al. 2019, arXiv:1904.10509 (strided attention); Longformer's dilated window (Beltagy et
al. 2020, arXiv:2004.05150).
Blocks: distances are counted in finished blocks, the last of them at distance 0.
Recommended: the stride near the square root of the length.
"""

from vortex import *


class Dilated(vFlow):
    budget = 8
    local = 4
    stride = 8

    def forward_indexer(self, q, c):
        distance = Positions().from_end
        return (distance < self.local) | (distance % self.stride == 0)
