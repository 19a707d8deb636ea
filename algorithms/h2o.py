"""H2O: heavy hitters, the blocks that collected most attention so far.

Formula: attend the blocks of largest acc_b; then acc_b += sum_{t in b, h} p_ht, p_h = softmax of scale *
q_h . k over the finished blocks just attended.
Paper: Zhang et al. 2023, arXiv:2306.14048, algorithm 1.
Blocks: the sum starts at the first decode step (prompt queries are not seen), so while acc ties the lower
block wins. A block that drops out gains nothing more and thus stays out, as evicted keys do. The current
block's keys are left out of the softmax.
Recommended: half of the budget for recent tokens, 20% of the context in all.
"""

from vortex import *


class H2O(vFlow):
    budget = "20% * blocks"
    recent_blocks = 4

    def forward_indexer(self, q, c):
        acc = c.get("acc", 0.0)
        heavy = topK(acc)
        s = GeMM(Gather(c["k"], heavy), q.T) * self.scale
        p = Softmax(s, dim=("block", "token"))
        c["acc"] = acc + Scatter(Sum(p, dim=("token", "head")))
        return heavy
