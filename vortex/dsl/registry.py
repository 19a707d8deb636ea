"""One operator, one declaration: this module holds the table, `ops/` fills it.

An operator's public function *is* its axis rule: it receives the types of its operands, checks them, and says
what comes out. Beside it stand the eager reference for one (request, KV head) and what padded lanes hold.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from vortex.dsl.axes import TensorType
from vortex.dsl.ir import Attribute, Node

Pads = dict[str, float | None]
"""Axis name -> value that lanes beyond the axis hold; None where it is not known."""


@dataclass(frozen=True)
class Inferred:
    """What a rule concludes: the result's type and the attributes, normalised so that the rule accepts them again."""

    type: TensorType
    attrs: dict[str, Attribute] = field(default_factory=dict)


def no_pads(node: Node, types: tuple[TensorType, ...], pads: tuple[Pads, ...]) -> Pads:
    """The contract of an operator that promises nothing about padded lanes."""
    return {}


def crosses_nothing(node: Node, types: tuple[TensorType, ...]) -> tuple[str, ...]:
    """The axes a map operator communicates along: none."""
    return ()


@dataclass(frozen=True)
class Operator:
    """A declared operator. Calling it in a flow records a node; calling it elsewhere is an error.

    rule       types and attributes -> Inferred; raises Problem
    reference  (node, operand types) -> function(run, *values) that computes it eagerly in torch
    pads       what padded lanes of the result hold, given the operands'
    neutral    what a consumed (reduced) axis must hold in its padded lanes, or None where nothing is reduced
    empty      what a reduction gives over no elements, where that is not `neutral`
    crosses    axes along which elements of the result depend on other elements
    scalar     the same on Python numbers, for elementwise operators: folds constants and padding values
    takes_sets whether the reference receives index sets as they are, and not as boolean indicators
    against    a number that may be given as a tensor: it is subtracted from the first operand, and 0 is compared
    """

    name: str
    family: str
    rule: Callable[..., Inferred]
    reference: Callable[[Node, tuple[TensorType, ...]], Callable[..., Any]]
    pads: Callable[[Node, tuple[TensorType, ...], tuple[Pads, ...]], Pads] = no_pads
    neutral: float | None = None
    empty: float | None = None
    crosses: Callable[[Node, tuple[TensorType, ...]], tuple[str, ...]] = crosses_nothing
    scalar: Callable[..., float] | None = None
    takes_sets: bool = False
    against: str | None = None
    public: bool = True

    @property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.rule)

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.rule) or ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from vortex.dsl.trace import apply

        return apply(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<operator {self.name}>"


OPERATORS: dict[str, Operator] = {}


def operator(**contract: Any) -> Callable[[Callable[..., Inferred]], Operator]:
    """Declares the decorated rule as an operator named like the function."""

    def declare(rule: Callable[..., Inferred]) -> Operator:
        return register(Operator(rule.__name__, rule.__module__.rsplit(".", 1)[-1], rule, **contract))

    return declare


def register(declared: Operator) -> Operator:
    if declared.name in OPERATORS:
        raise RuntimeError(f"operator {declared.name} is declared twice")
    OPERATORS[declared.name] = declared
    return declared


FUNCTION: ContextVar[str] = ContextVar("FUNCTION", default="indexer")
"""Which function is being traced, "cache" or "indexer": the default `dim` of a reduction depends on it."""
