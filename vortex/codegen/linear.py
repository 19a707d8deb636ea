"""Sums and means pushed towards the operand that alone carries their axis.

The mean over `head` of GeMM(centroids, q.T) is one product with the mean query; the sum over `dim` of a broadcast
product is a GeMM; a factor that lacks the axis comes out of the sum. All of it regroups fp32 sums.
"""

from __future__ import annotations

import math

from vortex.codegen.bounds import finite
from vortex.codegen.edit import Edit
from vortex.codegen.products import contract, sum_of_product
from vortex.dsl.axes import TensorType
from vortex.dsl.ir import Node
from vortex.dsl.ops.matmul import contraction

REDUCTIONS = ("Sum", "Mean")


def push_reduction(edit: Edit, number: int) -> int | None:
    """A Sum or Mean over axes other than `block`, as deep in its operand as linearity takes it."""
    node = edit.node(number)
    if node.op not in REDUCTIONS:
        return None
    axes = tuple(name for name in dims(node) if name != "block")
    if not axes or edit.node(node.inputs[0]).type.dtype != "fp32":
        return None
    value = _Push(edit, node.op).reduce(node.inputs[0], axes)
    if len(axes) < len(dims(node)):
        value = edit.add(node.op, value, dim="block")
    return edit.arranged(value, node.type.names)


def dims(node: Node) -> tuple[str, ...]:
    """The axes that a reduction or a row operator works along."""
    return tuple(node.attr("dim"))  # type: ignore[arg-type]


class _Push:
    """One reduction on its way down; every method returns a new node.

    op  "Sum" or "Mean"
    """

    def __init__(self, edit: Edit, op: str) -> None:
        self.edit = edit
        self.op = op

    def reduce(self, x: int, axes: tuple[str, ...]) -> int:
        """The old value `x` reduced over axes that it has."""
        if not axes:
            return self.edit.new[x]
        node = self.edit.node(x)
        if node.type.dtype == "fp32":
            if node.op in ("Neg", "Transpose"):
                return self._below(node, axes)
            if node.op in (*REDUCTIONS, "Conv1d", "CumSum") and not set(dims(node)) & set(axes):
                return self._below(node, axes)
            method = {"Add": self._sum, "Sub": self._sum, "Mul": self._product, "Div": self._quotient}.get(
                node.op
            )
            if node.op == "GeMM":
                return self._gemm(node, axes)
            if method is not None and not any(self._integer(each, axes) for each in node.inputs):
                return method(node, axes)
        return self._here(self.edit.new[x], axes)

    def _type(self, x: int) -> TensorType:
        return self.edit.node(x).type

    def _has(self, x: int, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in axes if self._type(x).axis(name) is not None)

    def _integer(self, x: int, axes: tuple[str, ...]) -> bool:
        """Whether a sum of `x` alone could wrap."""
        return self._type(x).dtype == "int32" and bool(self._has(x, axes))

    def _outside(self, x: int) -> bool:
        """Whether `x` may be multiplied after the sum: inf times a sum is not the sum of infinities."""
        return finite(self.edit.program, self.edit.old, x)

    def _here(self, value: int, axes: tuple[str, ...]) -> int:
        return self.edit.add(self.op, value, dim=axes) if axes else value

    def _below(self, node: Node, axes: tuple[str, ...]) -> int:
        inner = self.reduce(node.inputs[0], axes)
        if node.op == "Transpose":
            return self.edit.arranged(inner, tuple(name for name in node.type.names if name not in axes))
        return self.edit.again(node, inner)

    def _sum(self, node: Node, axes: tuple[str, ...]) -> int:
        """Both terms; one that lacks an axis counts once for a mean, as often as the axis is long for a sum."""
        terms = []
        for each in node.inputs:
            held = self._has(each, axes)
            term = self.reduce(each, held)
            sizes = [node.type.axis(name).size for name in axes if name not in held]  # type: ignore[union-attr]
            if self.op == "Sum" and sizes:
                term = self.edit.add("Mul", term, self.edit.constant(float(math.prod(sizes))))  # type: ignore[arg-type]
            terms.append(term)
        return self.edit.add(node.op, *terms)

    def _product(self, node: Node, axes: tuple[str, ...]) -> int:
        a, b = node.inputs
        only_a = tuple(name for name in axes if self._type(b).axis(name) is None and self._outside(b))
        only_b = tuple(name for name in axes if self._type(a).axis(name) is None and self._outside(a))
        shared = tuple(name for name in axes if name not in (*only_a, *only_b))
        left, right = self.reduce(a, only_a), self.reduce(b, only_b)
        both = tuple(name for name in shared if self._has(a, (name,)) and self._has(b, (name,)))
        if both:
            # `dim` is the axis that products contract; others stay outside.
            axis = "dim" if "dim" in both else both[-1]
            size = node.type.axis(axis).size  # type: ignore[union-attr]
            made = sum_of_product(self.edit, left, right, axis)
            if made is not None:
                if self.op == "Mean":
                    made = self.edit.add("Div", made, self.edit.constant(float(size)))  # type: ignore[arg-type]
                return self._here(made, tuple(name for name in shared if name != axis))
        return self._here(self.edit.add("Mul", left, right), shared)

    def _quotient(self, node: Node, axes: tuple[str, ...]) -> int:
        a, b = node.inputs
        divisor = self.edit.number_of(b)
        above = axes if divisor is not None and divisor != 0 else ()
        value = self.edit.add("Div", self.reduce(a, above), self.edit.new[b])
        return self._here(value, tuple(name for name in axes if name not in above))

    def _gemm(self, node: Node, axes: tuple[str, ...]) -> int:
        a, b = node.inputs
        types = (self._type(a), self._type(b))
        left = contraction(*types)[2].name
        right = types[1].axes[-2 if len(types[1].axes) > 1 else -1].name
        in_a = [name for name in axes if types[0].axis(name) is not None and name != left]
        in_b = [name for name in axes if types[1].axis(name) is not None and name != right]
        only_a = tuple(
            name for name in in_a if name not in in_b and types[0].dtype != "int32" and self._outside(b)
        )
        only_b = tuple(
            name for name in in_b if name not in in_a and types[1].dtype != "int32" and self._outside(a)
        )
        made = contract(self.edit, self.reduce(a, only_a), self.reduce(b, only_b), left, right)
        if made is None:
            made, only_a, only_b = self.edit.add("GeMM", self.edit.new[a], self.edit.new[b]), (), ()
        return self._here(made, tuple(name for name in axes if name not in (*only_a, *only_b)))
