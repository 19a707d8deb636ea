"""What each algorithm should attend, written from its paper in plain torch. Nothing here imports vortex.

`ORACLES[stem]` is the oracle of `algorithms/<stem>.py`: a function of a `Case` and of the state it may carry
from one decode step to the next, whose answer is a `Choice`.
"""

from tests.oracles import boxes, means, patterns, stateful, tokens
from tests.oracles.convention import Case, Choice

ORACLES = {**boxes.ORACLES, **means.ORACLES, **tokens.ORACLES, **patterns.ORACLES, **stateful.ORACLES}

__all__ = ["ORACLES", "Case", "Choice"]
