"""Selection over rows of scores: the specification of top-k, top-p and threshold.

A row holds the scores of the n finished blocks of one (request, KV head). The first `sinks` and last `recent` ids
are reserved: they are in every result and are not candidates. The current block (id n) is no part of these rows;
callers append it.

Order of candidates: larger score first, and the lower id first among equal scores. -0 equals +0. NaN
ranks as -inf, and a candidate scored -inf is never selected, so fewer ids than asked for may return.

`*_mask` take any number of rows, [..., n], and return which blocks are selected, bool [..., n]; `*_ids` take
one row and return the selected ids, int64, ascending.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def _reserved(n: int, sinks: int, recent: int) -> tuple[int, int]:
    """The candidates of a row of n are ids `first` to `last` - 1; all others are reserved."""
    if sinks < 0 or recent < 0:
        raise ValueError(f"sinks and recent are counts of blocks, got {sinks} and {recent}")
    first = min(sinks, n)
    return first, max(first, n - recent)


def _ranked(scores: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Scores and positions of the candidates, best first; position 0 is block `first`."""
    import torch

    candidates = torch.nan_to_num(scores[..., first:last], nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    values, positions = candidates.sort(dim=-1, descending=True, stable=True)
    return values, positions


def _mask(positions: Tensor, chosen: Tensor, n: int, first: int, last: int) -> Tensor:
    """The reserved blocks, and of the candidates at `positions` those that are `chosen`."""
    import torch

    shape = (*positions.shape[:-1], last - first)
    candidates = torch.zeros(shape, dtype=torch.bool, device=positions.device).scatter_(-1, positions, chosen)
    return torch.nn.functional.pad(candidates, (first, n - last), value=True)


def top_k_mask(scores: Tensor, take: int, sinks: int = 0, recent: int = 0) -> Tensor:
    """The `take` best blocks of each row, reserved ones included.

    scores  [..., n], any floating dtype
    take    ids to select in total; at least the reserved ones are. `take >= n` is a dense row: every id,
            whatever its score

    min(n, max(take, reserved)) are selected, or fewer where candidates are -inf.
    """
    import torch

    n = scores.shape[-1]
    if take >= n:
        return torch.ones(scores.shape, dtype=torch.bool, device=scores.device)
    first, last = _reserved(n, sinks, recent)
    wanted = max(take - (n - (last - first)), 0)
    values, positions = _ranked(scores, first, last)
    values, positions = values[..., :wanted], positions[..., :wanted]
    return _mask(positions, values > -math.inf, n, first, last)


def top_p_mask(weights: Tensor, p: float, limit: int, sinks: int = 0, recent: int = 0) -> Tensor:
    """The fewest blocks whose weights reach the share `p` of the row's total.

    weights  [..., n], non-negative; a negative or NaN weight counts as 0
    p        share of the total weight of the row, reserved blocks included in the total and in the sum
    limit    ids to select at most, reserved ones included (the reserved ones are selected in any case)

    Reserved blocks are in the set first; then candidates are added, largest first, until the sum reaches
    p * total or `limit` is met. A weight of 0 adds nothing and is not selected. Sums are fp64.
    """
    import torch

    if not 0 <= p <= 1:
        raise ValueError(f"p is a share between 0 and 1, got {p}")
    n = weights.shape[-1]
    first, last = _reserved(n, sinks, recent)
    weights = torch.where(weights > 0, weights, 0.0).to(torch.float64)
    values, positions = _ranked(weights, first, last)
    target = p * weights.sum(-1, keepdim=True)
    held = weights[..., :first].sum(-1, keepdim=True) + weights[..., last:].sum(-1, keepdim=True)
    before = held + values.cumsum(-1) - values
    chosen = (values > 0) & (before < target)
    chosen[..., max(limit - (n - (last - first)), 0) :] = False
    return _mask(positions, chosen, n, first, last)


def threshold_mask(scores: Tensor, t: float, limit: int, sinks: int = 0, recent: int = 0) -> Tensor:
    """The blocks scored at least `t`, the best of them where they are more than `limit`.

    scores  [..., n], any floating dtype
    limit   ids to select at most, reserved ones included (the reserved ones are selected in any case)

    -inf and NaN are not selected even for t = -inf.
    """
    n = scores.shape[-1]
    first, last = _reserved(n, sinks, recent)
    values, positions = _ranked(scores, first, last)
    chosen = (values >= t) & (values > -math.inf)
    chosen[..., max(limit - (n - (last - first)), 0) :] = False
    return _mask(positions, chosen, n, first, last)


def top_k_ids(scores: Tensor, take: int, sinks: int = 0, recent: int = 0) -> Tensor:
    """`top_k_mask` of one row as ids."""
    return top_k_mask(scores, take, sinks, recent).nonzero().flatten()


def top_p_ids(weights: Tensor, p: float, limit: int, sinks: int = 0, recent: int = 0) -> Tensor:
    """`top_p_mask` of one row as ids."""
    return top_p_mask(weights, p, limit, sinks, recent).nonzero().flatten()


def threshold_ids(scores: Tensor, t: float, limit: int, sinks: int = 0, recent: int = 0) -> Tensor:
    """`threshold_mask` of one row as ids."""
    return threshold_mask(scores, t, limit, sinks, recent).nonzero().flatten()


def top_k_along(scores: Tensor, k: int) -> Tensor:
    """The `k` best positions along the last axis, ascending; places without one (-inf, NaN) hold -1, at the end.

    scores  [..., n]. Returns int64 [..., k].
    """
    import torch

    held = scores.masked_fill(scores.isnan(), -math.inf)
    order = held.sort(dim=-1, descending=True, stable=True)
    best = order.indices[..., :k]
    missing = order.values[..., :k] == -math.inf
    n = scores.shape[-1]
    ascending = best.masked_fill(missing, n).sort(dim=-1).values
    return torch.where(ascending == n, -1, ascending)
