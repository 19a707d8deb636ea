"""Operators that need a whole row of an axis, most often the row of blocks of one (request, KV head)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from vortex.dsl.axes import TensorType, resolve, resolve_one
from vortex.dsl.ir import Node
from vortex.dsl.ops.support import positions
from vortex.dsl.problem import Problem
from vortex.dsl.registry import Inferred, Pads, operator

Dim = object


def _along(node: Node, types: tuple[TensorType, ...]) -> tuple[str, ...]:
    return tuple(node.attr("dim"))  # type: ignore[arg-type]


def _zero_stays(node: Node, types: tuple[TensorType, ...], operands: tuple[Pads, ...]) -> Pads:
    """Lanes of zeros stay zeros on the axes that the operator does not cross."""
    crossed = _along(node, types)
    return {axis: 0.0 for axis in node.type.names if axis not in crossed and operands[0].get(axis) == 0.0}


def _float_reference(compute: Callable[[Any, list[int], Node], Any]) -> Callable[..., Any]:
    def build(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
        dims = positions(types[0], _along(node, types))
        return lambda run, x: compute(x if x.dtype == run.dtype else x.to(run.dtype), dims, node)

    return build


def _softmax(x: Any, dims: list[int], node: Node) -> Any:
    """Shift-invariant; a row of only -inf gives zeros, as does a row without elements."""
    import torch

    if 0 in x.shape:
        return x
    top = x.amax(dims, keepdim=True)
    weights = torch.exp(x - torch.where(torch.isinf(top) & (top < 0), torch.zeros_like(top), top))
    total = weights.sum(dims, keepdim=True)
    return weights / torch.where(total == 0, torch.ones_like(total), total)


@operator(reference=_float_reference(_softmax), neutral=-math.inf, crosses=_along)
def Softmax(x: TensorType, *, dim: Dim = "block") -> Inferred:
    """exp(x - max) / sum of the same over `dim`, one axis or a tuple of axes taken together.

    The current block is not part of the row. Where every element is -inf the result is 0.
    """
    return Inferred(x.value("fp32"), {"dim": resolve(x, dim)})


def _normalize(x: Any, dims: list[int], node: Node) -> Any:
    import torch

    norm = x.square().sum(dims, keepdim=True).sqrt()
    return x / torch.where(norm == 0, torch.ones_like(norm), norm)


@operator(reference=_float_reference(_normalize), pads=_zero_stays, neutral=0.0, crosses=_along)
def Normalize(x: TensorType, *, dim: Dim = "dim") -> Inferred:
    """`x` over its L2 norm along `dim`; a vector of zeros stays zero."""
    return Inferred(x.value("fp32"), {"dim": resolve(x, dim)})


def _one_axis(x: TensorType, dim: Dim, what: str) -> tuple[str, ...]:
    return (resolve_one(x, dim, what),)


@operator(
    reference=_float_reference(lambda x, dims, node: x.cumsum(dims[0])),
    pads=_zero_stays,
    neutral=0.0,
    crosses=_along,
)
def CumSum(x: TensorType, *, dim: Dim = "block") -> Inferred:
    """Sum of the elements up to and including each one along `dim`, fp32."""
    return Inferred(x.value("fp32"), {"dim": _one_axis(x, dim, "CumSum")})


def _conv_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    import torch

    (position,) = positions(types[0], _along(node, types))
    weights: Sequence[float] = node.attr("weights")  # type: ignore[assignment]
    before = (len(weights) - 1) // 2

    def evaluate(run: Any, x: Any) -> Any:
        x = x.to(run.dtype)
        size = x.shape[position]
        pad = [0, 0] * (x.ndim - 1 - position) + [before, len(weights) - 1 - before]
        padded = torch.nn.functional.pad(x, pad)
        total = torch.zeros_like(x)
        for offset, weight in enumerate(weights):
            total = total + padded.narrow(position, offset, size) * weight
        return total

    return evaluate


@operator(reference=_conv_reference, pads=_zero_stays, neutral=0.0, crosses=_along)
def Conv1d(x: TensorType, weights: Sequence[float], *, dim: Dim = "block") -> Inferred:
    """Sum over j of weights[j] * x[i + j - (len(weights) - 1) // 2] along `dim`; outside the axis x is 0.

    `weights` are numbers known while tracing. The length is kept.
    """
    if not isinstance(weights, list | tuple) or not weights:
        raise Problem("conv-weights", value=weights)
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in weights):
        raise Problem("conv-weights", value=weights)
    if not all(math.isfinite(each) for each in weights):
        raise Problem("conv-weights", value=weights)
    axes = _one_axis(x, dim, "Conv1d")
    return Inferred(x.value("fp32"), {"weights": tuple(float(each) for each in weights), "dim": axes})


def _pool_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    import torch

    (position,) = positions(types[0], _along(node, types))
    width = int(node.attr("size"))  # type: ignore[arg-type]
    before = (width - 1) // 2

    def evaluate(run: Any, x: Any) -> Any:
        x = x.to(run.dtype)
        size = x.shape[position]
        pad = [0, 0] * (x.ndim - 1 - position) + [before, width - 1 - before]
        padded = torch.nn.functional.pad(x, pad, value=-math.inf)
        best = padded.narrow(position, 0, size)
        for offset in range(1, width):
            best = torch.maximum(best, padded.narrow(position, offset, size))
        return best

    return evaluate


@operator(reference=_pool_reference, neutral=-math.inf, crosses=_along)
def MaxPool1d(x: TensorType, size: int, *, dim: Dim = "block") -> Inferred:
    """Largest of the `size` elements around each one along `dim`, (size - 1) // 2 of them before it; stride 1."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise Problem("bad-size", name="size", value=size, more="")
    return Inferred(x.value("fp32"), {"size": size, "dim": _one_axis(x, dim, "MaxPool1d")})
