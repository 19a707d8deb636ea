"""StreamingLLM: attention sinks and a sliding window, by position alone.

Formula: attend block b if b < sink_blocks or b is among the newest (budget - sink_blocks).
Paper: Xiao et al. 2023, arXiv:2309.17453.
Blocks: 4 sink tokens become one sink block; the window is whole blocks and follows from the budget.
Positions are not renumbered: keys keep their RoPE angle.
Recommended: 4 sink tokens, a window of 1020 to 2044 tokens.
"""

from vortex import *


class StreamingLLM(vFlow):
    budget = 64
    sink_blocks = 1

    def forward_indexer(q, c):
        return topK(Positions().index)
