"""One request, one KV head, one decode step; and the budget convention that every oracle shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """What one KV head of one request sees at a decode step.

    q           [group, dim]: the newest token's query heads, unscaled
    k, v        [L, dim]: contiguous, the newest token last
    block       tokens of a block
    budget      attended blocks in all
    sink        first finished blocks that are always attended
    recent      last finished blocks that are always attended
    hyper       the method's own hyper-parameters
    parameters  name -> tensor of this layer and KV head
    """

    q: Tensor
    k: Tensor
    v: Tensor
    block: int
    budget: int
    sink: int = 0
    recent: int = 0
    hyper: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Finished blocks: those before the block of the newest token."""
        return (self.k.shape[0] - 1) // self.block

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.q.shape[1])

    def key_blocks(self) -> Tensor:
        """Keys of the finished blocks, [n, block, dim]."""
        return self.k[: self.n * self.block].unflatten(0, (self.n, self.block))

    def value_blocks(self) -> Tensor:
        return self.v[: self.n * self.block].unflatten(0, (self.n, self.block))

    def reserved(self) -> set[int]:
        """Attended whatever the scores: sinks, recent blocks, and the current block, which has number n."""
        first = set(range(min(self.sink, self.n)))
        last = set(range(max(0, self.n - self.recent), self.n))
        return first | last | {self.n}


@dataclass(frozen=True)
class Choice:
    """Attended block numbers, the current one among them; the scores [n] that alone decided, if any did."""

    blocks: set[int]
    scores: Tensor | None = None


Oracle = Callable[[Case, dict[str, Any]], Choice]


def top(case: Case, scores: Tensor, k: int | None = None, among: Iterable[int] | None = None) -> set[int]:
    """The reserved blocks and the best others, `k` (or the budget) in all.

    -inf is never taken, ties go to lower ids. `among` restricts the candidates to an earlier choice.
    """
    chosen = case.reserved()
    total = case.budget if k is None else k
    pool = range(case.n) if among is None else among
    candidates = [b for b in pool if b not in chosen and b < case.n and scores[b] > -math.inf]
    candidates.sort(key=lambda b: (-float(scores[b]), b))
    return chosen | set(candidates[: max(0, total - len(chosen))])


def choose(case: Case, scores: Tensor) -> Choice:
    return Choice(top(case, scores), scores)


def stateless(score: Callable[[Case], Tensor]) -> Oracle:
    """The oracle of a method that ranks blocks by `score(case)` [n] and fills the budget."""
    return lambda case, state: choose(case, score(case) if case.n else case.k.new_zeros(0))


def as_integers(x: Tensor, limit: int) -> Tensor:
    """`x` rounded to integers of ±limit with one fp16 scale per last axis."""
    scale = (x.abs().amax(-1, keepdim=True) / limit).half().to(x.dtype)
    return torch.where(scale == 0, 0.0, (x / scale).round().clamp(-limit, limit) * scale)


def as_fp8(x: Tensor) -> Tensor:
    """`x` rounded to e4m3."""
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)


def as_sign(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)
