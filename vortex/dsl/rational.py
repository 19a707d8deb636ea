"""Rational expressions in 64-bit integer arithmetic: one lowering for a kernel's text and for numpy arrays.

Each subexpression becomes a numerator over a positive denominator. Bounds that hold at every length travel
with it: they prove that no intermediate value leaves 64 bits, keep // away from negative numerators
(Python floors, Triton truncates), and fold what does not vary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vortex.dsl.expression import Node, PolicyError

MAX_TOKENS = 2**24
MAX_BLOCK_SIZE = 1024
MAX_LAYERS = 512
MAX_SOURCE = 4096
INT64_MAX = 2**63 - 1

Function = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Place:
    """Where a budget applies: a block size and layer number `layer` of `layers`. Raises ValueError."""

    block_size: int
    layer: int
    layers: int

    def __post_init__(self) -> None:
        if not 1 <= self.block_size <= MAX_BLOCK_SIZE:
            raise ValueError(f"block_size: 1 to {MAX_BLOCK_SIZE} are expected, got {self.block_size}")
        if not 0 <= self.layer < self.layers <= MAX_LAYERS:
            raise ValueError(
                f"layer: a number below layers, of at most {MAX_LAYERS}, is expected, "
                f"got {self.layer} of {self.layers}"
            )

    @property
    def values(self) -> dict[str, int]:
        return {"block_size": self.block_size, "layer": self.layer, "layers": self.layers}


@dataclass(frozen=True)
class Text:
    """Source text of an integer; its operators write the operation down."""

    source: str

    def __str__(self) -> str:
        return self.source

    def __add__(self, other: Any) -> Text:
        if isinstance(other, int) and other <= 0:
            return self - -other
        return Text(f"({self} + {other})")

    def __radd__(self, other: Any) -> Text:
        return self + other

    def __sub__(self, other: Any) -> Text:
        return self if _is(other, 0) else Text(f"({self} - {other})")

    def __rsub__(self, other: Any) -> Text:
        return Text(f"({other} - {self})")

    def __mul__(self, other: Any) -> Text:
        return self if _is(other, 1) else Text(f"({self} * {other})")

    def __rmul__(self, other: Any) -> Text:
        return self * other

    def __floordiv__(self, other: Any) -> Text:
        return self if _is(other, 1) else Text(f"({self} // {other})")

    def __rfloordiv__(self, other: Any) -> Text:
        return Text(f"({other} // {self})")

    def __neg__(self) -> Text:
        return Text(f"(-{self})")


@dataclass(frozen=True)
class Form:
    """num / den of a subexpression, den > 0.

    num, den: integers, `Text` or int64 arrays; low, high: bounds of the quotient; top: bound of |num|;
    bottom: bound of den; varies: depends on the length.
    """

    num: Any
    den: Any
    low: Fraction
    high: Fraction
    top: int
    bottom: int
    varies: bool


def ceiling(root: Node, place: Place, blocks: Any, tokens: Any, minimum: Function, maximum: Function) -> Any:
    """max(0, ceil(root)) in integer arithmetic: of the kind of `blocks`, or an int where it is constant.

    blocks, tokens: `Text`, or int64 arrays of one shape, for requests of 1 to MAX_TOKENS tokens.
    """
    variables = {name: _constant(Fraction(value)) for name, value in place.values.items()}
    variables["tokens"] = _variable(tokens, 1, MAX_TOKENS, varies=True)
    variables["blocks"] = _variable(blocks, 1, -(-MAX_TOKENS // place.block_size), varies=True)
    form = _lower(root, variables, {"min": minimum, "max": maximum})
    if form.low == form.high:
        return max(0, math.ceil(form.low))
    _fits(form.top + form.bottom, root)
    num = form.num if form.low >= 0 else maximum(form.num, 0)
    return (num + (form.den - 1)) // form.den


def check(root: Node) -> None:
    """Raises PolicyError unless the expression fits 64 bits at every length, block size and layer."""
    ranges = {
        "tokens": (1, MAX_TOKENS),
        "blocks": (1, MAX_TOKENS),
        "block_size": (1, MAX_BLOCK_SIZE),
        "layer": (0, MAX_LAYERS - 1),
        "layers": (1, MAX_LAYERS),
    }
    variables = {
        name: _variable(Text(name), low, high, varies=name in ("tokens", "blocks"))
        for name, (low, high) in ranges.items()
    }

    def either(a: Any, b: Any) -> Text:
        return Text(f"either({a}, {b})")

    form = _lower(root, variables, {"min": either, "max": either})
    _fits(form.top + form.bottom, root)


def zero_divisor(node: Node) -> PolicyError:
    """The error of dividing by `node`."""
    return PolicyError("the divisor can be zero", "write max(1, …) around it", node.start, node.end)


def _lower(node: Node, variables: dict[str, Form], functions: dict[str, Function]) -> Form:
    if node.op == "variable":
        return variables[node.name]
    args = [_lower(arg, variables, functions) for arg in node.args]
    match node.op:
        case "number":
            form = _constant(node.value)
        case "add":
            form = _add(*args)
        case "sub":
            form = _add(args[0], _negate(args[1]))
        case "neg":
            form = _negate(args[0])
        case "mul":
            form = _multiply(*args)
        case "div":
            form = _multiply(args[0], _invert(args[1], node.args[1]))
        case "floor" | "ceil":
            form = _round(args[0], node)
        case _:
            form = args[0]
            for other in args[1:]:
                form = _extreme(node.op, form, other, functions[node.op])
                _fits(form.top, node)
    if form.low == form.high:
        form = _constant(form.low)
    _fits(max(form.top, form.bottom), node)
    if isinstance(form.num, Text) and len(f"{form.num}{form.den}") > MAX_SOURCE:
        raise PolicyError(
            "the expression is too large for a kernel", "write it shorter", node.start, node.end
        )
    return form


def _add(a: Form, b: Form) -> Form:
    by_a, by_b, den, bottom, top_a, top_b = _common(a, b)
    num = a.num * by_a + b.num * by_b
    return Form(num, den, a.low + b.low, a.high + b.high, top_a + top_b, bottom, a.varies or b.varies)


def _extreme(op: str, a: Form, b: Form, function: Function) -> Form:
    by_a, by_b, den, bottom, top_a, top_b = _common(a, b)
    pick = min if op == "min" else max
    low, high = pick(a.low, b.low), pick(a.high, b.high)
    num = function(a.num * by_a, b.num * by_b)
    return Form(num, den, low, high, max(top_a, top_b), bottom, a.varies or b.varies)


def _common(a: Form, b: Form) -> tuple[Any, Any, Any, int, int, int]:
    """Factors that bring both numerators over one denominator, it, its bound, and the numerators' bounds."""
    if isinstance(a.den, int) and isinstance(b.den, int):
        den = math.lcm(a.den, b.den)
        by_a, by_b = den // a.den, den // b.den
        return by_a, by_b, den, den, a.top * by_a, b.top * by_b
    return b.den, a.den, a.den * b.den, a.bottom * b.bottom, a.top * b.bottom, b.top * a.bottom


def _negate(a: Form) -> Form:
    return Form(-a.num, a.den, -a.high, -a.low, a.top, a.bottom, a.varies)


def _multiply(a: Form, b: Form) -> Form:
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    top, bottom = a.top * b.top, a.bottom * b.bottom
    return Form(a.num * b.num, a.den * b.den, min(ends), max(ends), top, bottom, a.varies or b.varies)


def _invert(a: Form, node: Node) -> Form:
    if a.low > 0:
        return Form(a.den, a.num, 1 / a.high, 1 / a.low, a.bottom, a.top, a.varies)
    if a.high < 0:
        return Form(-a.den, -a.num, 1 / a.high, 1 / a.low, a.bottom, a.top, a.varies)
    if a.varies or a.low == a.high:
        raise zero_divisor(node)
    # Only `check` comes here: whether a divisor of layer numbers is zero shows once the layer is known.
    return Form(a.den, a.num, Fraction(-a.bottom), Fraction(a.bottom), a.bottom, a.top, a.varies)


def _round(a: Form, node: Node) -> Form:
    if isinstance(a.den, int) and a.den == 1:
        return a
    # Whole units are added until the numerator is never negative, and taken off the quotient.
    shift = max(0, math.ceil(-a.low))
    _fits(a.top + (shift + 1) * a.bottom, node)
    num = a.num + shift * a.den if shift else a.num
    if node.op == "ceil":
        num = num + (a.den - 1)
    whole = math.floor if node.op == "floor" else math.ceil
    low, high = whole(a.low), whole(a.high)
    top = max(abs(low), abs(high))
    return Form(num // a.den - shift, 1, Fraction(low), Fraction(high), top, 1, a.varies)


def _variable(value: Any, low: int, high: int, varies: bool) -> Form:
    return Form(value, 1, Fraction(low), Fraction(high), high, 1, varies)


def _constant(value: Fraction) -> Form:
    return Form(
        value.numerator, value.denominator, value, value, abs(value.numerator), value.denominator, False
    )


def _fits(bound: int, node: Node) -> None:
    if bound > INT64_MAX:
        message = f"values can exceed 64 bits within {MAX_TOKENS:,} tokens"
        remedy = "write smaller factors, or fewer products of lengths"
        raise PolicyError(message, remedy, node.start, node.end)


def _is(value: Any, number: int) -> bool:
    return isinstance(value, int) and value == number
