"""Patterns by position alone."""

from __future__ import annotations

from typing import Any

from tests.oracles.convention import Case, Choice


def streaming_llm(case: Case, state: dict[str, Any]) -> Choice:
    """Sinks, and the newest blocks that the rest of the budget holds, the current one first."""
    window = max(case.budget, len(case.reserved())) - min(case.sink, case.n)
    return Choice(case.reserved() | set(range(max(0, case.n + 1 - window), case.n + 1)))


def a_shape(case: Case, state: dict[str, Any]) -> Choice:
    first = range(min(case.hyper["first"], case.n))
    last = range(max(0, case.n - case.hyper["last"]), case.n)
    return Choice(case.reserved() | set(first) | set(last))


def dilated(case: Case, state: dict[str, Any]) -> Choice:
    chosen = case.reserved()
    for b in range(case.n):
        distance = case.n - 1 - b
        if distance < case.hyper["local"] or distance % case.hyper["stride"] == 0:
            chosen.add(b)
    return Choice(chosen)


ORACLES = {"streaming_llm": streaming_llm, "a_shape": a_shape, "dilated": dilated}
