"""Algebra that saves work: rules that regroup fp32 arithmetic, taken where the estimated cost falls.

Results agree within fp32 rounding. Every rule assumes that K, V, q and parameters are finite, and looks through
arithmetic only: a Cast stops it.
"""

from __future__ import annotations

import math

from vortex.codegen.bounds import finite, upper_and_lower
from vortex.codegen.cost import worthwhile
from vortex.codegen.edit import Edit, Rule, sweep
from vortex.codegen.graph import FUNCTIONS, Rewrite
from vortex.codegen.linear import dims, push_reduction
from vortex.codegen.products import sum_of_product
from vortex.dsl.ir import Node, Program

MODERATE = (1e-18, 1e18)
"""Factors that move scores neither to infinity nor to zero."""

MONOTONE = ("Exp", "Sigmoid", "Tanh")
"""Increasing and defined everywhere."""

HOMOGENEOUS = (
    "Max",
    "Min",
    "Sum",
    "Mean",
    "MaxPool1d",
    "Conv1d",
    "CumSum",
    "Relu",
    "Abs",
    "Neg",
    "Transpose",
)
"""A positive factor of the operand is a factor of the result."""


def _positive(edit: Edit, number: int) -> bool:
    value = edit.number_of(number)
    return value is not None and not isinstance(value, bool) and MODERATE[0] < value < MODERATE[1]


def _factor(edit: Edit, node: Node) -> tuple[int, int] | None:
    """(value, constant) of a product or quotient with a positive constant, old numbers; the value is fp32."""
    if node.op not in ("Mul", "Div"):
        return None
    pairs = [node.inputs, node.inputs[::-1]] if node.op == "Mul" else [node.inputs]
    for value, constant in pairs:
        if _positive(edit, constant) and edit.node(value).type.dtype == "fp32":
            return value, constant
    return None


def box_bound(edit: Edit, number: int) -> int | None:
    """Sum of Maximum(q * hi, q * lo) as GeMM(hi, Maximum(q, 0)) + GeMM(lo, Minimum(q, 0)), and the same for Minimum.

    With hi >= lo, max(q*hi, q*lo) is q*hi where q >= 0 and q*lo elsewhere. Where the order of the two is not known
    from how they were stored, their maximum and minimum take their places. Finite values only: 0 * inf is NaN.
    """
    node = edit.node(number)
    bound = edit.node(node.inputs[0]) if node.inputs else node
    if node.op not in ("Sum", "Mean") or bound.op not in ("Maximum", "Minimum"):
        return None
    axis, *others = dims(node)
    if others or axis == "block":
        return None
    found = _common_factor(edit, bound)
    if found is None:
        return None
    factor, first, second = found
    if not all(finite(edit.program, edit.old, each) for each in found):
        return None
    hi, lo = _ordered(edit, first, second)
    if bound.op == "Minimum":
        hi, lo = lo, hi
    zero = edit.constant(0.0)
    terms = [
        sum_of_product(edit, side, edit.add(half, edit.new[factor], zero), axis)
        for side, half in ((hi, "Maximum"), (lo, "Minimum"))
    ]
    if None in terms:
        return None
    total = edit.add("Add", *terms)  # type: ignore[arg-type]
    if node.op == "Mean":
        size = bound.type.axis(axis).size  # type: ignore[union-attr]
        total = edit.add("Div", total, edit.constant(float(size)))  # type: ignore[arg-type]
    return edit.arranged(total, node.type.names)


def _common_factor(edit: Edit, bound: Node) -> tuple[int, int, int] | None:
    """(q, a, b) of an extreme of q * a and q * b, all fp32."""
    one, two = (edit.node(each) for each in bound.inputs)
    if one.op != "Mul" or two.op != "Mul":
        return None
    for factor, first in (one.inputs, one.inputs[::-1]):
        if factor in two.inputs:
            second = two.inputs[1 - two.inputs.index(factor)]
            if all(edit.node(each).type.dtype == "fp32" for each in (factor, first, second)):
                return factor, first, second
    return None


def _ordered(edit: Edit, first: int, second: int) -> tuple[int, int]:
    """The larger and the smaller of two values, new numbers: themselves where that is proven."""
    above, below = upper_and_lower(edit.program, edit.node(first), edit.node(second))
    one, two = edit.new[first], edit.new[second]
    if above or below:
        return (one, two) if above else (two, one)
    return edit.add("Maximum", one, two), edit.add("Minimum", one, two)


def order_only(edit: Edit, number: int) -> int | None:
    """What a topK ranks, without steps that keep the order.

    A positive factor and a constant offset always; Exp, Sigmoid, Tanh and a Softmax over block where heads are not
    combined and no score is -inf, which is never selected, while its exponential may be.
    """
    node = edit.node(number)
    if node.op != "topK" or node.attr("mode") is not None:
        return None
    (source,) = node.inputs
    ranked = _unscaled(edit, source)
    if ranked is None:
        ranked = _same_order(edit, source)
    return None if ranked is None else edit.again(node, ranked)


def _same_order(edit: Edit, source: int) -> int | None:
    step = edit.node(source)
    if step.op in ("Add", "Sub"):
        pairs = [step.inputs, step.inputs[::-1]] if step.op == "Add" else [step.inputs]
        for value, constant in pairs:
            offset = edit.number_of(constant)
            if offset is not None and abs(offset) < MODERATE[1] and edit.node(value).type == step.type:
                return edit.new[value]
        return None
    over_row = step.op == "Softmax" and step.attr("dim") == ("block",) == step.type.names
    if not (step.op in MONOTONE or over_row) or edit.program.policy.share_heads:
        return None
    value = step.inputs[0]
    return edit.new[value] if finite(edit.program, edit.old, value) else None


def _unscaled(edit: Edit, number: int) -> int | None:
    """The old value without a positive constant factor somewhere below it, or None where there is none."""
    node = edit.node(number)
    found = _factor(edit, node)
    if found is not None:
        return edit.new[found[0]]
    if node.type.dtype != "fp32" or edit.uses[number] > 1:
        return None
    if node.op == "GeMM":
        operands = [edit.new[each] for each in node.inputs]
        for position, each in enumerate(node.inputs):
            inner = _unscaled(edit, each)
            if inner is not None:
                operands[position] = inner
                return edit.add("GeMM", *operands)
        return None
    if node.op not in HOMOGENEOUS:
        return None
    inner = _unscaled(edit, node.inputs[0])
    return None if inner is None else edit.again(node, inner)


def scale_after_extreme(edit: Edit, number: int) -> int | None:
    """Max(x * c) is Max(x) * c for positive c, and Max(x + c) is Max(x) + c, exactly: rounding is monotone."""
    node = edit.node(number)
    if node.op not in ("Max", "Min"):
        return None
    inner = edit.node(node.inputs[0])
    found = _factor(edit, inner)
    if found is None and inner.op in ("Add", "Sub"):
        value, constant = inner.inputs
        if edit.number_of(value) is not None and inner.op == "Add":
            value, constant = constant, value
        offset = edit.number_of(constant)
        if offset is not None and math.isfinite(offset) and edit.node(value).type.dtype == "fp32":
            found = value, constant
    if found is None:
        return None
    best = edit.add(node.op, edit.new[found[0]], dim=node.attr("dim"))
    return edit.add(inner.op, best, edit.new[found[1]])


def scale_small_operand(edit: Edit, number: int) -> int | None:
    """GeMM(a, b) * c as GeMM(a, b * c): the query is scaled once, not every score."""
    node = edit.node(number)
    found = _factor(edit, node)
    if found is None or edit.node(found[0]).op != "GeMM":
        return None
    a, b = (edit.new[each] for each in edit.node(found[0]).inputs)
    constant = edit.new[found[1]]
    if edit.type(b).axis("block") is None:
        return edit.add("GeMM", a, edit.add(node.op, b, constant))
    return edit.add("GeMM", edit.add(node.op, a, constant), b)


def merge_factors(edit: Edit, number: int) -> int | None:
    """(x * c) * d is x * (c * d)."""
    node = edit.node(number)
    outer = _factor(edit, node)
    inner = None if outer is None else _factor(edit, edit.node(outer[0]))
    if outer is None or inner is None:
        return None
    product = 1.0
    for each, (_, constant) in ((node, outer), (edit.node(outer[0]), inner)):
        value = float(edit.number_of(constant))  # type: ignore[arg-type]
        product = product * value if each.op == "Mul" else product / value
    if not MODERATE[0] < product < MODERATE[1]:
        return None
    return edit.add("Mul", edit.new[inner[0]], edit.constant(product))


RULES: tuple[Rule, ...] = (
    box_bound,
    push_reduction,
    order_only,
    scale_after_extreme,
    merge_factors,
    scale_small_operand,
)


def rewrite_algebra(program: Program) -> tuple[Program, tuple[Rewrite, ...]]:
    """One sweep of all rules over both functions."""
    found: list[Rewrite] = []
    for which in FUNCTIONS:
        program, rewrites = sweep(program, which, "algebra", RULES, worthwhile)
        found += rewrites
    return program, tuple(found)
