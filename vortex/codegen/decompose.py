"""Softmax, Normalize and L2Norm as the primitives that the reference computes them with.

The last pass, for lowerings that have the primitives alone. Values are the reference's bit for bit: a row of only
-inf gives zeros and no NaN, a norm of 0 leaves zeros.
"""

from __future__ import annotations

import math

from vortex.codegen.edit import Edit, Rule, sweep
from vortex.codegen.graph import FUNCTIONS, Rewrite
from vortex.dsl.ir import Program


def _in_fp32(edit: Edit, number: int) -> int:
    """An operand on which products do not wrap: integers and booleans become fp32."""
    value = edit.new[number]
    return value if edit.type(value).is_float else edit.add("Mul", value, edit.constant(1.0))


def softmax(edit: Edit, number: int) -> int | None:
    """exp(x - max) over its sum; the max counts as 0 where it is -inf, the sum as 1 where it is 0."""
    node = edit.node(number)
    if node.op != "Softmax":
        return None
    x, axes = _in_fp32(edit, node.inputs[0]), node.attr("dim")
    top = edit.add("Max", x, dim=axes)
    nothing = edit.add("Equal", top, edit.constant(-math.inf))
    shift = edit.add("Where", nothing, edit.constant(0.0), top)
    weights = edit.add("Exp", edit.add("Sub", x, shift))
    total = edit.add("Sum", weights, dim=axes)
    return edit.arranged(edit.add("Div", weights, _or_one(edit, total)), node.type.names)


def normalize(edit: Edit, number: int) -> int | None:
    """x over its norm, which counts as 1 where it is 0."""
    node = edit.node(number)
    if node.op != "Normalize":
        return None
    x = _in_fp32(edit, node.inputs[0])
    norm = _norm(edit, x, node.attr("dim"))
    return edit.arranged(edit.add("Div", x, _or_one(edit, norm)), node.type.names)


def l2_norm(edit: Edit, number: int) -> int | None:
    """The square root of the sum of squares."""
    node = edit.node(number)
    return _norm(edit, _in_fp32(edit, node.inputs[0]), node.attr("dim")) if node.op == "L2Norm" else None


def _norm(edit: Edit, x: int, axes: object) -> int:
    return edit.add("Sqrt", edit.add("Sum", edit.add("Mul", x, x), dim=axes))


def _or_one(edit: Edit, divisor: int) -> int:
    zero = edit.add("Equal", divisor, edit.constant(0.0))
    return edit.add("Where", zero, edit.constant(1.0), divisor)


RULES: tuple[Rule, ...] = (softmax, normalize, l2_norm)


def decompose(program: Program) -> tuple[Program, tuple[Rewrite, ...]]:
    """Both functions without Softmax, Normalize and L2Norm."""
    found: list[Rewrite] = []
    for which in FUNCTIONS:
        program, rewrites = sweep(program, which, "decompose", RULES, lambda *_: "a lowering of its own")
        found += rewrites
    return program, tuple(found)
