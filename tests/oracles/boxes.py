"""Bounds of q . k over a block: Quest, LServe, ArkVale."""

from __future__ import annotations

from torch import Tensor

from tests.oracles.convention import Case, as_integers, stateless


def box_bound(q: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Largest q . x over x in each box, [boxes, group]: the query's sign picks the end of each channel."""
    positive, negative = q.clamp(min=0), q.clamp(max=0)
    return high @ positive.T + low @ negative.T


def quest(case: Case) -> Tensor:
    k = case.key_blocks()
    return box_bound(case.q, k.amin(1), k.amax(1)).amax(1)


def quest_int8(case: Case) -> Tensor:
    """Rounded ends may cross, so the larger product of the two is taken channel by channel."""
    k = case.key_blocks()
    high, low = as_integers(k.amax(1), 127), as_integers(k.amin(1), 127)
    scores = k.new_zeros(case.n)
    for head in case.q:
        scores += (head * high).maximum(head * low).sum(1)
    return scores / case.q.shape[0]


def lserve(case: Case) -> Tensor:
    pages = case.key_blocks().reshape(case.n * case.hyper["logical_pages"], -1, case.k.shape[1])
    bounds = box_bound(case.q, pages.amin(1), pages.amax(1)).amax(1)
    return bounds.reshape(case.n, -1).amax(1)


def arkvale(case: Case) -> Tensor:
    k = case.key_blocks()
    center = k.mean(1)
    radius = (k - center[:, None]).norm(dim=2).amax(1)
    return (center @ case.q.T + radius[:, None] * case.q.norm(dim=1)).amax(1)


ORACLES = {
    "quest": stateless(quest),
    "quest_int8": stateless(quest_int8),
    "lserve": stateless(lserve),
    "arkvale": stateless(arkvale),
}
