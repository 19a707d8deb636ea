"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vortex.dsl.axes import NAMED, Axis, TensorType, arranged, distinct, unite
from vortex.dsl.ir import Node
from vortex.dsl.problem import Problem
from vortex.dsl.registry import Inferred, Pads, operator


def contraction(
    a: TensorType, b: TensorType
) -> tuple[tuple[Axis, ...], tuple[Axis, ...], Axis, tuple[Axis, ...]]:
    """How numpy's matmul reads two operands after the leading 1: (batch, rows of a, contracted, columns of b).

    An operand of one axis is a vector: it is contracted whole and leaves nothing behind.
    """
    if not a.axes or not b.axes:
        raise Problem("gemm-scalar", left=a, right=b)
    left = a.axes[-1]
    right = b.axes[-2] if len(b.axes) > 1 else b.axes[-1]
    if left.size != right.size or left.subset != right.subset:
        raise Problem("contracted-size", left=left, right=right, a=a, b=b)
    if left.name != right.name and left.name in NAMED and right.name in NAMED:
        raise Problem("contracted-name", left=left, right=right, a=a, b=b)
    rows = a.axes[-2:-1]
    columns = b.axes[-1:] if len(b.axes) > 1 else ()
    batch = unite([TensorType(a.axes[:-2]), TensorType(b.axes[:-2])])
    return arranged(batch), rows, left, columns


def _crosses(node: Node, types: tuple[TensorType, ...]) -> tuple[str, ...]:
    return (contraction(*types)[2].name,)


def _pads(node: Node, types: tuple[TensorType, ...], operands: tuple[Pads, ...]) -> Pads:
    """A lane that holds 0 in one operand, whatever it meets, holds 0 in the product."""
    return {axis: 0.0 for axis in node.type.names if 0.0 in (operands[0].get(axis), operands[1].get(axis))}


def _reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    import torch

    batch, rows, _, columns = contraction(*types)
    # In the order of the result, which need not be `arranged` when an executor adds an axis in front.
    batch = node.type.axes[: len(batch)]
    a, b = types

    def lift(x: Any, source: TensorType, matrix_axes: int) -> Any:
        """Operand with its batch axes arranged and missing ones added as size 1."""
        names = [axis.name for axis in source.axes[:-matrix_axes]]
        order = [names.index(axis.name) for axis in batch if axis.name in names]
        x = x.permute(*order, *range(len(names), len(source.axes)))
        for position, axis in enumerate(batch):
            if axis.name not in names:
                x = x.unsqueeze(position)
        return x

    def evaluate(run: Any, x: Any, y: Any) -> Any:
        x = x if x.dtype == run.dtype else x.to(run.dtype)
        y = y if y.dtype == run.dtype else y.to(run.dtype)
        if not batch:
            return torch.matmul(x, y)
        x = lift(x if rows else x.unsqueeze(-2), a if rows else TensorType((Axis("", 1), *a.axes)), 2)
        y = lift(y if columns else y.unsqueeze(-1), b if columns else TensorType((*b.axes, Axis("", 1))), 2)
        result = torch.matmul(x, y)
        result = result if rows else result.squeeze(-2)
        return result if columns else result.squeeze(-1)

    return evaluate


@operator(reference=_reference, pads=_pads, neutral=0.0, crosses=_crosses)
def GeMM(a: TensorType, b: TensorType) -> Inferred:
    """Matrix product `a @ b`, fp32: numpy's matmul after the leading 1, with batch axes aligned by name.

    (1, …, m, k) @ (1, …, k, n) is (1, …, m, n). Contracted axes agree in size, and in name where both are
    block, token, head or dim. An operand with one axis is a vector.
    """
    batch, rows, _, columns = contraction(a, b)
    return Inferred(TensorType(distinct((*batch, *rows, *columns)), "fp32"))
