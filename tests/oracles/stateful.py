"""Methods whose choice depends on earlier steps. `state` is an empty dict at the first one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.oracles.convention import Case, Choice, choose, top
from tests.oracles.means import pooled, probabilities


def masses(case: Case, chosen: set[int]) -> dict[int, Tensor]:
    """Attention mass [group] of each finished block in `chosen`, by softmax over their keys alone."""
    blocks = sorted(b for b in chosen if b < case.n)
    if not blocks:
        return {}
    keys = torch.cat([case.k[b * case.block : (b + 1) * case.block] for b in blocks])
    p = torch.softmax(case.q @ keys.T * case.scale, dim=1)
    return {b: p[:, j * case.block : (j + 1) * case.block].sum(1) for j, b in enumerate(blocks)}


def remembered(case: Case, state: dict[int, Any], default: float) -> Tensor:
    return torch.tensor([float(state.get(b, default)) for b in range(case.n)], dtype=case.k.dtype)


def h2o(case: Case, state: dict[str, Any]) -> Choice:
    collected = state.setdefault("acc", {})
    scores = remembered(case, collected, 0.0)
    chosen = top(case, scores)
    for b, mass in masses(case, chosen).items():
        collected[b] = collected.get(b, 0.0) + float(mass.sum())
    return Choice(chosen, scores)


def tova(case: Case, state: dict[str, Any]) -> Choice:
    """Blocks never seen outrank all weights; blocks once dropped are gone."""
    weights = state.setdefault("weight", {})
    scores = remembered(case, weights, 1.0)
    chosen = top(case, scores)
    heavy = masses(case, chosen)
    state["weight"] = {b: float(heavy[b].mean()) if b in heavy else -math.inf for b in range(case.n)}
    return Choice(chosen, scores)


def scissorhands(case: Case, state: dict[str, Any]) -> Choice:
    """Counts how often a kept block's mass was below the mean of the kept."""
    misses = state.setdefault("misses", {})
    scores = -remembered(case, misses, 0.0)
    chosen = top(case, scores)
    heavy = {b: float(mass.mean()) for b, mass in masses(case, chosen).items()}
    for b in range(case.n):
        if b not in heavy:
            misses[b] = math.inf
        elif heavy[b] < 1 / len(heavy):
            misses[b] = misses.get(b, 0) + 1
    return Choice(chosen, scores)


def snapkv(case: Case, state: dict[str, Any]) -> Choice:
    """Votes of all queries so far, each weakened by `decay` per step since."""
    history = state.setdefault("votes", [])
    history.append(probabilities(case).sum(1))
    votes = case.k.new_zeros(case.n)
    for age, vote in enumerate(reversed(history)):
        votes[: len(vote)] += case.hyper["decay"] ** age * vote
    return choose(case, pooled(votes, case.hyper["kernel"]))


def rising(case: Case, state: dict[str, Any]) -> Choice:
    """The moving average as the explicit sum over earlier steps: rate * (1 - rate)^(age) * p."""
    history = state.setdefault("p", [])
    p = probabilities(case).amax(1)
    rate = case.hyper["rate"]
    average = torch.zeros_like(p)
    for age, earlier in enumerate(reversed(history)):
        average[: len(earlier)] += rate * (1 - rate) ** age * earlier
    history.append(p)
    return choose(case, p + case.hyper["gain"] * (p - average).clamp(min=0))


ORACLES = {"h2o": h2o, "tova": tova, "scissorhands": scissorhands, "snapkv": snapkv, "rising": rising}
