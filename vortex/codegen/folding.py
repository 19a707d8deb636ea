"""The value of an operator on constants, where it is beyond doubt."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from vortex.dsl.ir import Node
from vortex.dsl.registry import OPERATORS

Number = float | int | bool

INT32 = range(-(2**31), 2**31)
RELATIVE = 2.0**-20
"""Largest distance of fp32 arithmetic from exact arithmetic that still is rounding, and no cancellation."""

SIGNED_ZEROS = ("Maximum", "Minimum", "Relu", "Mod", "FloorDiv")
"""Operators whose zero has a sign that Python and devices need not agree on."""

COMPARISONS = ("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual")


def single(value: float) -> float:
    """The nearest fp32 value."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def folded(node: Node, values: Sequence[Number]) -> Number | None:
    """The node's value on these constants, or None where it is better left to the device.

    Floats are folded in double precision where fp32 arithmetic gives the same up to rounding; integers where the
    result fits int32 (the device wraps, the reference does not); NaN, and inf from finite numbers, never.
    """
    scalar = OPERATORS[node.op].scalar
    if scalar is None or any(isinstance(value, float) and math.isnan(value) for value in values):
        return None
    if node.op in ("FloorDiv", "Mod") and any(
        isinstance(value, float) and math.isinf(value) for value in values
    ):
        return None  # inf to some, NaN to torch
    wide = [_held(node, position, values) for position in range(len(values))]
    try:
        result = scalar(*wide)
        narrow = scalar(*(single(value) if isinstance(value, float) else value for value in wide))
    except (ArithmeticError, ValueError):
        return None
    if isinstance(result, complex) or isinstance(narrow, complex):
        return None
    return _agreed(node, result, narrow, wide)


def _held(node: Node, position: int, values: Sequence[Number]) -> Number:
    """A constant in the dtype in which its operator computes, as the reference converts it."""
    value = values[position]
    if node.op in ("And", "Or", "Xor", "Not") or (node.op == "Where" and position == 0):
        return value
    floating = any(isinstance(each, float) for each in values)
    if node.type.dtype == "fp32" or (node.op in COMPARISONS and floating):
        return float(value)
    return int(value)


def _agreed(node: Node, wide: Number, narrow: Number, operands: Sequence[Number]) -> Number | None:
    dtype = node.type.dtype
    if dtype == "bool":
        return bool(wide) if bool(wide) == bool(narrow) else None
    if dtype == "int32":
        return int(wide) if int(wide) in INT32 else None
    if dtype != "fp32":
        return None
    wide, narrow = float(wide), single(float(narrow))
    if math.isinf(wide) or math.isinf(narrow):
        from_inf = any(isinstance(each, float) and math.isinf(each) for each in operands)
        return wide if from_inf and wide == narrow else None
    if math.isnan(wide) or math.isnan(narrow):
        return None
    if wide == 0 and (narrow != 0 or node.op in SIGNED_ZEROS):
        return None
    return wide if abs(wide - narrow) <= RELATIVE * abs(wide) else None
