"""TOVA: drop what the newest query attends least.

Formula: attend the blocks of largest w_b; then w_b = mean_h sum_{t in b} p_ht for the blocks just
attended, p_h = softmax of scale * q_h . k over them, and w_b = -inf for all others.
Paper: Oren et al. 2024, arXiv:2401.06104.
Blocks: whole blocks are dropped. A block enters with weight 1, above any probability; the prompt's blocks
tie at the first decode step and the lower block wins. The current block's keys are left out of the
softmax.
Recommended: a multi-state of 512 to 1024 tokens.
"""

from vortex import *


class TOVA(vFlow):
    budget = 64

    def forward_indexer(self, q, c):
        alive = topK(c.get("weight", 1.0))
        s = GeMM(Gather(c["k"], alive), q.T) * self.scale
        p = Sum(Softmax(s, dim=("block", "token")), dim="token")
        c["weight"] = Scatter(Mean(p, dim="head"), fill=float("-inf"))
        return alive
