"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vortex.dsl.axes import NAMED, Axis, TensorType, arranged, distinct, unite
from vortex.dsl.ir import Node
from vortex.dsl.ops.support import reorder
from vortex.dsl.problem import Problem
from vortex.dsl.registry import Inferred, operator


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


def _reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    import torch

    batch, rows, _, columns = contraction(*types)
    # In the order of the result, which need not be `arranged` when an executor adds an axis in front.
    batch = node.type.axes[: len(batch)]
    a, b = types

    outer = [axis.name for axis in batch]
    left, right = ("(row)", "(depth)"), ("(depth)", "(column)")
    view_a = reorder([*(axis.name for axis in a.axes[:-2]), *left], [*outer, *left])
    view_b = reorder([*(axis.name for axis in b.axes[:-2]), *right], [*outer, *right])

    def evaluate(run: Any, x: Any, y: Any) -> Any:
        x = x if x.dtype == run.dtype else x.to(run.dtype)
        y = y if y.dtype == run.dtype else y.to(run.dtype)
        if not batch:
            return torch.matmul(x, y)
        x = x if rows else x.unsqueeze(-2)
        y = y if columns else y.unsqueeze(-1)
        result = torch.matmul(view_a(x) if view_a else x, view_b(y) if view_b else y)
        result = result if rows else result.squeeze(-2)
        return result if columns else result.squeeze(-1)

    return evaluate


# Of lanes beyond an axis nothing is known: the other operand may be infinite or NaN, which 0 does not absorb.
@operator(reference=_reference, neutral=0.0, crosses=_crosses)
def GeMM(a: TensorType, b: TensorType) -> Inferred:
    """Matrix product `a @ b`, fp32: numpy's matmul after the leading 1, with batch axes aligned by name.

    (1, …, m, k) @ (1, …, k, n) is (1, …, m, n). Contracted axes agree in size, and in name where both are
    block, token, head or dim. An operand with one axis is a vector.
    """
    batch, rows, _, columns = contraction(a, b)
    return Inferred(TensorType(distinct((*batch, *rows, *columns)), "fp32"))
