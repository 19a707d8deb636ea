"""Reductions: they remove their axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from vortex.dsl.axes import TensorType, computed, resolve, resolve_one
from vortex.dsl.ir import Node
from vortex.dsl.ops.support import positions, result_dtype
from vortex.dsl.problem import Problem
from vortex.dsl.registry import FUNCTION, Inferred, Pads, operator

Dim = object


def default_axes(x: TensorType) -> tuple[str, ...]:
    """Without `dim`: `token` inside forward_cache where the tensor has it, else the last axis, never `block`."""
    if not x.axes:
        raise Problem("reduce-scalar")
    if FUNCTION.get() == "cache" and x.axis("token"):
        return ("token",)
    if x.axes[-1].name == "block":
        raise Problem("default-block", type=x)
    return (x.axes[-1].name,)


def axes_of(x: TensorType, dim: Dim) -> tuple[str, ...]:
    return default_axes(x) if dim is None else resolve(x, dim)


def reduced(node: Node, types: tuple[TensorType, ...]) -> tuple[str, ...]:
    """The axes a reduction communicates along: those it removes."""
    return tuple(node.attr("dim"))  # type: ignore[arg-type]


def reducing_pads(combine: Callable[[float, float], float]) -> Callable[..., Pads]:
    """Padded lanes of the remaining axes hold the reduction of a constant; `combine(value, size)` computes it."""

    def pads(node: Node, types: tuple[TensorType, ...], operands: tuple[Pads, ...]) -> Pads:
        sizes = [types[0].axis(name).size for name in reduced(node, types)]  # type: ignore[union-attr]
        if None in sizes:
            return {}
        size = math.prod(sizes)  # type: ignore[arg-type]
        held = {axis: operands[0].get(axis) for axis in node.type.names}
        return {axis: combine(value, size) for axis, value in held.items() if value is not None}

    return pads


def _reference(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The reference of a reduction; `compute(x, dims)` reduces a tensor that has at least one element."""

    def build(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
        dims = positions(types[0], reduced(node, types))
        wanted = node.type.dtype

        def evaluate(run: Any, x: Any) -> Any:
            dtype = result_dtype(run, wanted)
            return compute(x if x.dtype == dtype else x.to(dtype), dims)

        return evaluate

    return build


def _extreme(name: str, empty: float) -> Callable[..., Any]:
    def compute(x: Any, dims: list[int]) -> Any:
        import torch

        if 0 not in x.shape:
            return getattr(x, name)(dims)
        shape = [size for position, size in enumerate(x.shape) if position not in dims]
        fill = empty if x.dtype.is_floating_point else int(math.copysign(2**31 - 1, empty))
        return torch.full(shape, fill, dtype=x.dtype, device=x.device)

    return compute


@operator(
    reference=_reference(lambda x, dims: x.sum(dims)),
    pads=reducing_pads(lambda value, size: value * size),
    neutral=0.0,
    crosses=reduced,
)
def Sum(x: TensorType, *, dim: Dim = None) -> Inferred:
    """Sum over `dim`; 0 over no elements. Booleans are counted."""
    axes = axes_of(x, dim)
    dtype = "fp32" if x.is_float else "int32"
    return Inferred(TensorType(x.without(axes).axes, dtype), {"dim": axes})


@operator(
    reference=_reference(lambda x, dims: x.mean(dims)),
    pads=reducing_pads(lambda value, size: value),
    neutral=0.0,
    empty=math.nan,
    crosses=reduced,
)
def Mean(x: TensorType, *, dim: Dim = None) -> Inferred:
    """Arithmetic mean over `dim`, fp32; NaN over no elements."""
    axes = axes_of(x, dim)
    return Inferred(TensorType(x.without(axes).axes, "fp32"), {"dim": axes})


@operator(
    reference=_reference(_extreme("amax", -math.inf)),
    pads=reducing_pads(lambda value, size: value),
    neutral=-math.inf,
    crosses=reduced,
)
def Max(x: TensorType, *, dim: Dim = None) -> Inferred:
    """Largest element over `dim`; -inf over no elements."""
    axes = axes_of(x, dim)
    dtype = "int32" if x.dtype == "bool" else computed(x.dtype)
    return Inferred(TensorType(x.without(axes).axes, dtype), {"dim": axes})


@operator(
    reference=_reference(_extreme("amin", math.inf)),
    pads=reducing_pads(lambda value, size: value),
    neutral=math.inf,
    crosses=reduced,
)
def Min(x: TensorType, *, dim: Dim = None) -> Inferred:
    """Smallest element over `dim`; inf over no elements."""
    axes = axes_of(x, dim)
    dtype = "int32" if x.dtype == "bool" else computed(x.dtype)
    return Inferred(TensorType(x.without(axes).axes, dtype), {"dim": axes})


@operator(
    reference=_reference(lambda x, dims: x.square().sum(dims).sqrt()),
    pads=reducing_pads(lambda value, size: abs(value) * math.sqrt(size)),
    neutral=0.0,
    crosses=reduced,
)
def L2Norm(x: TensorType, *, dim: Dim = "dim") -> Inferred:
    """Euclidean length over `dim` (by default the axis named dim), fp32."""
    axes = resolve(x, dim)
    return Inferred(TensorType(x.without(axes).axes, "fp32"), {"dim": axes})


def _argument_reference(name: str) -> Callable[..., Any]:
    def build(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
        import torch

        (position,) = positions(types[0], reduced(node, types))
        worst = -math.inf if name == "argmax" else math.inf

        def evaluate(run: Any, x: Any) -> Any:
            if x.shape[position] == 0:
                shape = [size for each, size in enumerate(x.shape) if each != position]
                return torch.full(shape, -1, dtype=torch.int64, device=x.device)
            held = x.to(run.dtype)
            # torch ranks NaN first; here it ranks last, as in a selection. Of equal elements the first counts.
            held = torch.where(torch.isnan(held), worst, held)
            best = (
                held.amax(position, keepdim=True) if name == "argmax" else held.amin(position, keepdim=True)
            )
            return (held == best).to(torch.uint8).argmax(position)

        return evaluate

    return build


def _argument_rule(x: TensorType, dim: Dim, what: str) -> Inferred:
    name = resolve_one(x, dim, what)
    if x.axis(name).subset is not None:  # type: ignore[union-attr]
        raise Problem("restricted-argument", type=x)
    return Inferred(TensorType(x.without([name]).axes, "int32"), {"dim": (name,)})


@operator(reference=_argument_reference("argmax"), neutral=-math.inf, crosses=reduced)
def ArgMax(x: TensorType, *, dim: Dim = "block") -> Inferred:
    """Index of the largest element along one axis, the first of equal ones; NaN ranks last; -1 over no elements."""
    return _argument_rule(x, dim, "ArgMax")


@operator(reference=_argument_reference("argmin"), neutral=math.inf, crosses=reduced)
def ArgMin(x: TensorType, *, dim: Dim = "block") -> Inferred:
    """Index of the smallest element along one axis, the first of equal ones; NaN ranks last; -1 over no elements."""
    return _argument_rule(x, dim, "ArgMin")
