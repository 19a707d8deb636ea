"""Rules for operators that return an operand, or an operand of an operand, bit for bit.

Floats keep their NaN, infinities and signed zeros: x * 0 is no 0, and x + 0.0 is x only where x is never -0.
"""

from __future__ import annotations

import math

from vortex.codegen.edit import Edit, Rule

NEVER_NEGATIVE_ZERO = ("Exp", "Sigmoid", "Abs", "L2Norm", "Softmax")
"""Operators whose fp32 results are never -0."""

IDEMPOTENT_CASTS = ("fp32", "bf16", "fp16", "fp8", "sign", "int32", "bool")
"""Roundings that change nothing the second time; scaled integers find another scale."""


def _is_one(value: object) -> bool:
    return value is not None and not isinstance(value, bool) and value == 1


def _zero_sign(value: float | None) -> float | None:
    """+1 or -1 for a zero that is no boolean, else None."""
    if value is None or isinstance(value, bool) or value != 0:
        return None
    return math.copysign(1.0, value)


def multiply_by_one(edit: Edit, number: int) -> int | None:
    """x * 1, x / 1, x ** 1."""
    node = edit.node(number)
    if node.op not in ("Mul", "Div", "Pow"):
        return None
    left, right = node.inputs
    if _is_one(edit.number_of(right)):
        return edit.new[left]
    return edit.new[right] if node.op == "Mul" and _is_one(edit.number_of(left)) else None


def add_zero(edit: Edit, number: int) -> int | None:
    """x - 0.0 and x + -0.0 always; x + 0.0 where x is an integer or never -0."""
    node = edit.node(number)
    if node.op not in ("Add", "Sub"):
        return None
    pairs = [node.inputs] if node.op == "Sub" else [node.inputs, node.inputs[::-1]]
    for kept, zero in pairs:
        sign = _zero_sign(edit.number_of(zero))
        if sign is None:
            continue
        harmless = -1.0 if node.op == "Add" else 1.0
        if sign == harmless or node.type.dtype == "int32" or _never_negative_zero(edit, kept):
            return edit.new[kept]
    return None


def _never_negative_zero(edit: Edit, number: int) -> bool:
    node = edit.node(number)
    if node.op == "Add":
        return any(_zero_sign(edit.number_of(each)) == 1.0 for each in node.inputs)
    return node.op in NEVER_NEGATIVE_ZERO


def twice(edit: Edit, number: int) -> int | None:
    """Neg Neg and Not Not are nothing; Abs, Relu and most Casts change nothing the second time."""
    node = edit.node(number)
    if len(node.inputs) != 1 or edit.node(node.inputs[0]).op != node.op:
        return None
    inner = edit.node(node.inputs[0])
    if node.op in ("Neg", "Not"):
        return edit.new[inner.inputs[0]]
    same_cast = node.op == "Cast" and node.attrs == inner.attrs and node.attr("to") in IDEMPOTENT_CASTS
    return edit.new[node.inputs[0]] if same_cast or node.op in ("Abs", "Relu") else None


def cast_to_fp32(edit: Edit, number: int) -> int | None:
    """Arithmetic is fp32 already."""
    node = edit.node(number)
    return edit.new[node.inputs[0]] if node.op == "Cast" and node.attr("to") == "fp32" else None


def transposes(edit: Edit, number: int) -> int | None:
    """A Transpose of a Transpose is one; one that keeps the order is none."""
    node = edit.node(number)
    if node.op != "Transpose":
        return None
    (source,) = node.inputs
    if edit.node(source).type.names == node.type.names:
        return edit.new[source]
    inner = edit.node(source)
    if inner.op != "Transpose":
        return None
    origin = edit.new[inner.inputs[0]]
    if edit.type(origin).names == node.type.names:
        return origin
    return edit.add("Transpose", origin, axes=node.type.names)


def reduce_transposed(edit: Edit, number: int) -> int | None:
    """Reductions name their axes: a Transpose below one matters only for the order of what is left."""
    node = edit.node(number)
    if node.op not in ("Sum", "Mean", "Max", "Min", "L2Norm", "ArgMax", "ArgMin"):
        return None
    inner = edit.node(node.inputs[0])
    if inner.op != "Transpose":
        return None
    return edit.add(node.op, edit.new[inner.inputs[0]], dim=node.attr("dim"))


def extremes_of_extremes(edit: Edit, number: int) -> int | None:
    """Max of Max and Min of Min are one reduction over all their axes."""
    node = edit.node(number)
    if node.op not in ("Max", "Min") or edit.node(node.inputs[0]).op != node.op:
        return None
    if edit.uses[node.inputs[0]] > 1:
        return None
    inner = edit.node(node.inputs[0])
    dims = (*inner.attr("dim"), *node.attr("dim"))  # type: ignore[misc]
    return edit.add(node.op, edit.new[inner.inputs[0]], dim=dims)


def same_operands(edit: Edit, number: int) -> int | None:
    """Maximum, Minimum, & and | of a value with itself."""
    node = edit.node(number)
    if node.op in ("Maximum", "Minimum", "And", "Or") and node.inputs[0] == node.inputs[1]:
        return edit.new[node.inputs[0]]
    return None


def where_decided(edit: Edit, number: int) -> int | None:
    """A constant condition, two equal branches, a negated condition."""
    node = edit.node(number)
    if node.op != "Where":
        return None
    condition, yes, no = node.inputs
    known = edit.number_of(condition)
    if known is not None:
        return edit.new[yes if known else no]
    if yes == no:
        return edit.new[yes]
    if edit.node(condition).op == "Not":
        return edit.add("Where", edit.new[edit.node(condition).inputs[0]], edit.new[no], edit.new[yes])
    return None


def signs(edit: Edit, number: int) -> int | None:
    """a + -b, a - -b, -a * -b, Abs(-a): the sign moves into the operator, exactly."""
    node = edit.node(number)
    if node.op not in ("Add", "Sub", "Mul", "Abs"):
        return None
    negated = [edit.node(each).inputs[0] if edit.node(each).op == "Neg" else None for each in node.inputs]
    if node.op == "Abs":
        return None if negated[0] is None else edit.add("Abs", edit.new[negated[0]])
    if node.op == "Mul":
        if negated[0] is None or negated[1] is None:
            return None
        return edit.add("Mul", edit.new[negated[0]], edit.new[negated[1]])
    if negated[1] is None:
        return None
    return edit.add("Sub" if node.op == "Add" else "Add", edit.new[node.inputs[0]], edit.new[negated[1]])


def squares(edit: Edit, number: int) -> int | None:
    """x ** 2 is x * x, rounded once in both."""
    node = edit.node(number)
    if node.op != "Pow" or edit.number_of(node.inputs[1]) != 2:
        return None
    base = edit.new[node.inputs[0]]
    # Integers would wrap where Pow computes in fp32.
    return edit.add("Mul", base, base) if edit.type(base).is_float else None


def divide_by_power_of_two(edit: Edit, number: int) -> int | None:
    """x / 2**n is x * 2**-n exactly, for results that fp32 holds as normal numbers."""
    node = edit.node(number)
    if node.op != "Div":
        return None
    divisor = edit.number_of(node.inputs[1])
    if divisor is None or isinstance(divisor, bool) or not math.isfinite(divisor) or divisor == 0:
        return None
    mantissa, exponent = math.frexp(divisor)
    if abs(mantissa) != 0.5 or not -100 < exponent < 100 or divisor == 1:
        return None
    return edit.add("Mul", edit.new[node.inputs[0]], edit.constant(1.0 / divisor))


IDENTITIES: tuple[Rule, ...] = (
    multiply_by_one,
    add_zero,
    twice,
    cast_to_fp32,
    transposes,
    reduce_transposed,
    extremes_of_extremes,
    same_operands,
    where_decided,
    signs,
    squares,
    divide_by_power_of_two,
)
