"""Sums of products as GeMM, wherever the axes of its operands allow it."""

from __future__ import annotations

from vortex.codegen.graph import Builder


def contract(builder: Builder, a: int, b: int, left: str, right: str) -> int | None:
    """The product of `a` and `b` summed over axis `left` of one and `right` of the other, as a GeMM if it has the form.

    Axes that both have are batch axes. GeMM needs one axis that only `a` has for its rows, unless `a` is a
    vector, and one that only `b` has for its columns, unless `b` is one. Axes come out in GeMM's order.
    """
    of_a = [name for name in builder.type(a).names if name != left]
    of_b = [name for name in builder.type(b).names if name != right]
    rows = [name for name in of_a if name not in of_b]
    columns = [name for name in of_b if name not in of_a]
    if (of_a and not rows) or (of_b and not columns):
        return None
    order_a = [name for name in of_a if name not in rows[-1:]] + rows[-1:] + [left]
    order_b = [name for name in of_b if name not in columns[-1:]] + [right] + columns[-1:]
    return builder.add("GeMM", builder.arranged(a, tuple(order_a)), builder.arranged(b, tuple(order_b)))


def sum_of_product(builder: Builder, a: int, b: int, axis: str) -> int | None:
    """Sum(a * b, dim=axis) as one GeMM whose left operand is the larger one; None where it would need a batch.

    Batched products do not fill a tensor core: those sums stay as they are.
    """
    over_blocks = [builder.type(each).axis("block") is not None for each in (a, b)]
    first, second = (b, a) if over_blocks == [False, True] else (a, b)
    columns = set(builder.type(second).names) - {axis}
    if len(columns) > 1 or columns & set(builder.type(first).names):
        return None
    return contract(builder, first, second, axis, axis)
