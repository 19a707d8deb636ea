"""A-shape: the first blocks and a local window, whatever the query.

Formula: attend block b if b < `first` or b >= n - `last`, n the finished blocks.
Paper: Jiang et al. 2024, MInference, arXiv:2407.02490 (the A-shape head); LM-Infinite (Han et al. 2023,
arXiv:2308.16137).
Blocks: token counts rounded to blocks.
Recommended: 1024 global and 4096 local tokens.
"""

from vortex import *


class AShape(vFlow):
    budget = 24
    first = 8
    last = 15

    def forward_indexer(self, q, c):
        return Union(First(self.first), Last(self.last))
