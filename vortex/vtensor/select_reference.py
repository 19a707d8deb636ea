"""Selection over one row of scores: the specification of top-k, top-p and threshold.

Every function takes one row, scores of the n finished blocks of one (request, KV head), and returns the
selected block ids in ascending order. The first `sinks` and last `recent` ids are reserved: they are in every
result and are not candidates. The current block (id n) is no part of these rows; callers append it.

Order of candidates: larger score first, and the lower id first among equal scores. -0 equals +0. NaN
ranks as -inf, and a candidate scored -inf is never selected, so fewer ids than asked for may return.
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


def _ranked(scores: Tensor, first: int, last: int) -> Tensor:
    """Candidate ids, best first, without those that may never be selected."""
    candidates = scores[first:last]
    candidates = candidates.masked_fill(candidates.isnan(), -math.inf)
    order = candidates.sort(descending=True, stable=True)
    selectable = int((order.values > -math.inf).sum())
    return order.indices[:selectable] + first


def _with_reserved(chosen: Tensor, n: int, first: int, last: int) -> Tensor:
    import torch

    mask = torch.zeros(n, dtype=torch.bool, device=chosen.device)
    mask[:first] = True
    mask[last:] = True
    mask[chosen] = True
    return mask.nonzero().reshape(-1)


def top_k_ids(scores: Tensor, take: int, sinks: int = 0, recent: int = 0) -> Tensor:
    """The `take` best blocks of a row, reserved ones included.

    scores  [n], any floating dtype
    take    ids to return in total; at least the reserved ones are returned. `take >= n` is a dense row:
            every id, whatever its score

    Returns int64 ids, ascending: min(n, max(take, reserved)) of them, or fewer where candidates are -inf.
    """
    import torch

    n = scores.shape[0]
    if take >= n:
        return torch.arange(n, device=scores.device)
    first, last = _reserved(n, sinks, recent)
    wanted = max(take - (n - (last - first)), 0)
    return _with_reserved(_ranked(scores, first, last)[:wanted], n, first, last)


def top_p_ids(weights: Tensor, p: float, limit: int, sinks: int = 0, recent: int = 0) -> Tensor:
    """The fewest blocks whose weights reach the share `p` of the row's total.

    weights  [n], non-negative; a negative or NaN weight counts as 0
    p        share of the total weight of the row, reserved blocks included in the total and in the sum
    limit    ids to return at most, reserved ones included (the reserved ones are returned in any case)

    Reserved blocks are in the set first; then candidates are added, largest first, until the sum reaches
    p * total or `limit` is met. A weight of 0 adds nothing and is not selected. Returns int64 ids, ascending.
    """
    import torch

    if not 0 <= p <= 1:
        raise ValueError(f"p is a share between 0 and 1, got {p}")
    n = weights.shape[0]
    first, last = _reserved(n, sinks, recent)
    weights = torch.where(weights > 0, weights, 0.0).to(torch.float64)
    ranked = _ranked(torch.where(weights > 0, weights, -math.inf), first, last)
    target = p * weights.sum()
    held = weights[:first].sum() + weights[last:].sum()
    before = held + weights[ranked].cumsum(0) - weights[ranked]
    needed = int((before < target).sum())
    wanted = min(needed, max(limit - (n - (last - first)), 0))
    return _with_reserved(ranked[:wanted], n, first, last)


def threshold_ids(scores: Tensor, t: float, limit: int, sinks: int = 0, recent: int = 0) -> Tensor:
    """The blocks scored at least `t`, the best of them where they are more than `limit`.

    scores  [n], any floating dtype
    limit   ids to return at most, reserved ones included (the reserved ones are returned in any case)

    Returns int64 ids, ascending. -inf and NaN are not selected even for t = -inf.
    """
    n = scores.shape[0]
    first, last = _reserved(n, sinks, recent)
    ranked = _ranked(scores, first, last)
    ranked = ranked[scores[ranked] >= t]
    return _with_reserved(ranked[: max(limit - (n - (last - first)), 0)], n, first, last)
