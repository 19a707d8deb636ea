"""Elementwise operators: operands align by axis name, numbers mix with tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from vortex.dsl.axes import TensorType, align, promote
from vortex.dsl.ir import Node
from vortex.dsl.ops import scalars
from vortex.dsl.ops.support import aligned_reference
from vortex.dsl.problem import Problem
from vortex.dsl.registry import Inferred, Operator, Pads, operator, register


def _pads_of(scalar: Callable[..., float]) -> Callable[..., Pads]:
    """Padded lanes hold the operator applied to what the operands' lanes hold.

    An operand without the axis brings values that are not known here, so nothing is promised: a product with
    0 is no 0 where that value is inf.
    """

    def pads(node: Node, types: tuple[TensorType, ...], operands: tuple[Pads, ...]) -> Pads:
        result: Pads = {}
        for axis in node.type.names:
            held = [each.get(axis, each.get("")) for each in operands]
            if None not in held:
                value = scalar(*held)
                result[axis] = None if math.isnan(value) else value
        return result

    return pads


def _float_rule(x: TensorType) -> Inferred:
    return Inferred(x.value("fp32"))


def _same_rule(x: TensorType) -> Inferred:
    return Inferred(x.value("int32" if x.dtype == "bool" else None))


def _arithmetic_rule(a: TensorType, b: TensorType) -> Inferred:
    return Inferred(TensorType(align([a, b]), promote(a, b)))


def _float_binary_rule(a: TensorType, b: TensorType) -> Inferred:
    return Inferred(TensorType(align([a, b]), "fp32"))


def _compare_rule(a: TensorType, b: TensorType) -> Inferred:
    return Inferred(TensorType(align([a, b]), "bool"))


def _bitwise_rule(a: TensorType, b: TensorType) -> Inferred:
    for each in (a, b):
        if each.is_float:
            raise Problem("bitwise-float", type=each)
    return Inferred(TensorType(align([a, b]), "bool" if a.dtype == b.dtype == "bool" else "int32"))


def _declare(
    name: str,
    doc: str,
    rule: Callable[..., Inferred],
    scalar: Callable[..., float],
    torch_name: str | Callable[..., Any],
) -> Operator:
    """One elementwise operator: `torch_name` is the eager function of its reference."""

    if rule.__code__.co_argcount == 1:

        def declared(x: TensorType) -> Inferred:
            return rule(x)
    else:

        def declared(a: TensorType, b: TensorType) -> Inferred:  # type: ignore[misc]
            return rule(a, b)

    declared.__name__, declared.__doc__ = name, doc
    return register(
        Operator(
            name,
            "elementwise",
            declared,
            aligned_reference(torch_name),
            pads=_pads_of(scalar),
            scalar=scalar,
        )
    )


def _eager_sigmoid(x: Any) -> Any:
    """torch.sigmoid and silu round an element differently at the end of a row than within it."""
    import torch

    return 1.0 / (1.0 + torch.exp(-x))


Exp = _declare("Exp", "e**x.", _float_rule, scalars.exp, "exp")
Log = _declare("Log", "Natural logarithm; -inf at 0, NaN below.", _float_rule, scalars.log, "log")
Sqrt = _declare("Sqrt", "Square root; NaN below 0.", _float_rule, scalars.sqrt, "sqrt")
Rsqrt = _declare("Rsqrt", "1 / Sqrt(x); inf at 0.", _float_rule, scalars.rsqrt, "rsqrt")
Sigmoid = _declare("Sigmoid", "1 / (1 + Exp(-x)).", _float_rule, scalars.sigmoid, _eager_sigmoid)
Silu = _declare("Silu", "x * Sigmoid(x).", _float_rule, scalars.silu, lambda x: x * _eager_sigmoid(x))
Tanh = _declare("Tanh", "Hyperbolic tangent.", _float_rule, math.tanh, "tanh")
Abs = _declare("Abs", "Absolute value.", _same_rule, abs, "abs")
Neg = _declare("Neg", "The negative of x.", _same_rule, lambda x: -x, "neg")
Relu = _declare("Relu", "The larger of x and 0.", _same_rule, scalars.relu, "relu")
Maximum = _declare(
    "Maximum",
    "The larger of two, element by element; NaN wins.",
    _arithmetic_rule,
    scalars.maximum,
    "maximum",
)
Minimum = _declare(
    "Minimum",
    "The smaller of two, element by element; NaN wins.",
    _arithmetic_rule,
    scalars.minimum,
    "minimum",
)
Add = _declare("Add", "a + b.", _arithmetic_rule, lambda a, b: a + b, "add")
Sub = _declare("Sub", "a - b.", _arithmetic_rule, lambda a, b: a - b, "sub")
Mul = _declare("Mul", "a * b.", _arithmetic_rule, lambda a, b: a * b, "mul")
Div = _declare("Div", "a / b, always fp32.", _float_binary_rule, scalars.divide, "true_divide")
FloorDiv = _declare(
    "FloorDiv",
    "a // b, rounded towards minus infinity; an integer over 0 is 0.",
    _arithmetic_rule,
    scalars.floor_divide,
    "floor_divide",
)
Mod = _declare(
    "Mod",
    "a % b, with the sign of b, as in Python; an integer modulo 0 is 0.",
    _arithmetic_rule,
    scalars.remainder,
    "remainder",
)
Pow = _declare("Pow", "a ** b, always fp32.", _float_binary_rule, scalars.power, "float_power")
Less = _declare("Less", "a < b.", _compare_rule, lambda a, b: a < b, "lt")
LessEqual = _declare("LessEqual", "a <= b.", _compare_rule, lambda a, b: a <= b, "le")
Greater = _declare("Greater", "a > b.", _compare_rule, lambda a, b: a > b, "gt")
GreaterEqual = _declare("GreaterEqual", "a >= b.", _compare_rule, lambda a, b: a >= b, "ge")
Equal = _declare("Equal", "a == b.", _compare_rule, lambda a, b: a == b, "eq")
NotEqual = _declare("NotEqual", "a != b.", _compare_rule, lambda a, b: a != b, "ne")
And = _declare(
    "And", "a & b, on booleans and integers.", _bitwise_rule, lambda a, b: int(a) & int(b), "bitwise_and"
)
Or = _declare(
    "Or", "a | b, on booleans and integers.", _bitwise_rule, lambda a, b: int(a) | int(b), "bitwise_or"
)
Xor = _declare(
    "Xor", "a ^ b, on booleans and integers.", _bitwise_rule, lambda a, b: int(a) ^ int(b), "bitwise_xor"
)


def _where_pads(node: Node, types: tuple[TensorType, ...], operands: tuple[Pads, ...]) -> Pads:
    return _pads_of(lambda condition, a, b: a if condition else b)(node, types, operands)


@operator(
    reference=aligned_reference("where"),
    pads=_where_pads,
    scalar=lambda condition, a, b: a if condition else b,
)
def Where(condition: TensorType, a: TensorType, b: TensorType) -> Inferred:
    """`a` where the boolean `condition` holds, `b` elsewhere."""
    if condition.dtype != "bool":
        raise Problem("not-boolean", type=condition, what="The condition of Where")
    both_bool = a.dtype == b.dtype == "bool"
    return Inferred(TensorType(align([condition, a, b]), "bool" if both_bool else promote(a, b)))


@operator(reference=aligned_reference("logical_not"), pads=_pads_of(lambda x: not x), scalar=lambda x: not x)
def Not(x: TensorType) -> Inferred:
    """~x, on booleans (an index set counts as its indicator)."""
    if x.dtype != "bool":
        raise Problem("not-boolean", type=x, what="The operand of ~")
    return Inferred(x.value())


ROUNDING = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "sign", "int32", "bool")
"""What `Cast` accepts: four float formats (fp8 is e4m3), scaled integers, signs, and plain integers and booleans."""


TORCH_DTYPES = {
    "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8_e4m3fn": "fp8",
    "float8": "fp8", "int": "int32", "int64": "int32", "long": "int32", "uint8": "int8", "uint4": "int4",
}  # fmt: skip
"""torch's name -> ours."""


def nearest_dtype(given: object) -> str:
    """ " Did you mean …?" for a dtype as torch or numpy names it, or nothing."""
    name = str(getattr(given, "__name__", given)).rsplit(".", 1)[-1].lower()
    return f' Did you mean "{TORCH_DTYPES[name]}"?' if name in TORCH_DTYPES else ""


def _cast_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    from vortex.dsl.ops.storage import rounded

    to = str(node.attr("to"))
    return lambda run, x: rounded(x, to)


@operator(reference=_cast_reference)
def Cast(x: TensorType, to: str) -> Inferred:
    """Rounds `x` to what `to` can hold: fp32, bf16, fp16, fp8 (e4m3), int8 and int4 (one scale per last
    axis), sign (reads back as +1 and -1; 0 counts as +1), int32 (towards zero), bool (not 0).

    A stored entry takes the dtype of its Cast; arithmetic on the result is fp32 again.
    """
    if not isinstance(to, str) or to not in ROUNDING:
        raise Problem("unknown-dtype", dtype=to, near=nearest_dtype(to), names=", ".join(ROUNDING))
    if to in ("int8", "int4") and not x.axes:
        raise Problem("cast-scalar", dtype=to)
    return Inferred(TensorType(x.axes, to), {"to": to})
