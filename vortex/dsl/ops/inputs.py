"""Where values come from: the model's tensors, entries, states, parameters, positions and numbers.

These are recorded by the tracer, not written by an author; their types come from the program's tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vortex.dsl.axes import BLOCK, TensorType
from vortex.dsl.ir import Node
from vortex.dsl.problem import Problem
from vortex.dsl.registry import FUNCTION, Inferred, Pads, operator

LEAVES = ("Const", "Input", "Entry", "State", "Weight")
"""Operators without operands whose types the program's tables decide."""


def _leaf_rule() -> Inferred:
    raise RuntimeError("the type of a leaf comes from its program")


def _zero_pads(node: Node, types: tuple[TensorType, ...], operands: tuple[Pads, ...]) -> Pads:
    """Loads fill padded lanes with 0."""
    return dict.fromkeys(node.type.names, 0.0)


def _const_pads(node: Node, types: tuple[TensorType, ...], operands: tuple[Pads, ...]) -> Pads:
    """A number holds itself in every lane of whatever it meets: the entry under the empty name."""
    return {"": node.attr("value")}  # type: ignore[dict-item]


def _from_run(getter: str) -> Callable[..., Callable[..., Any]]:
    def build(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
        name = node.attr("name")
        return lambda run: getattr(run, getter)(name)

    return build


def _const_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    value, dtype = node.attr("value"), node.type.dtype
    return lambda run: run.constant(value, dtype)


@operator(reference=_const_reference, pads=_const_pads, public=False)
def Const(*, value: float) -> Inferred:
    """A number of the author's file."""
    dtype = "bool" if isinstance(value, bool) else "int32" if isinstance(value, int) else "fp32"
    return Inferred(TensorType((), dtype), {"value": value})


@operator(reference=_from_run("input"), pads=_zero_pads, public=False)
def Input(*, name: str) -> Inferred:
    """A tensor of the model: k, v or q."""
    return _leaf_rule()


@operator(reference=_from_run("entry"), pads=_zero_pads, public=False)
def Entry(*, name: str) -> Inferred:
    """What forward_cache stored of every finished block."""
    return _leaf_rule()


@operator(reference=_from_run("state"), pads=_zero_pads, public=False)
def State(*, name: str) -> Inferred:
    """What the last decode step left."""
    return _leaf_rule()


@operator(reference=_from_run("weight"), pads=_zero_pads, public=False)
def Weight(*, name: str) -> Inferred:
    """A `Parameter` at this layer and KV head."""
    return _leaf_rule()


def _position_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    if node.attr("of") == "index":
        return lambda run: run.arange(run.blocks)
    return lambda run: run.blocks - 1 - run.arange(run.blocks)


@operator(reference=_position_reference, public=False)
def Position(*, of: str) -> Inferred:
    """Number of each block: `of` = "index" from 0 at the start, "from_end" from 0 at the last finished block."""
    if FUNCTION.get() == "cache":
        raise Problem("blocks-in-cache", what="Positions")
    return Inferred(TensorType((BLOCK,), "int32"), {"of": of})
