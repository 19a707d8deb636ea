"""Elementwise operators as Triton expressions."""

from __future__ import annotations

from vortex.codegen.lowering import lowers
from vortex.codegen.tile import TRITON, Emitter, Scope, Tile, kind_of
from vortex.dsl.axes import Axis, promote, unite
from vortex.dsl.ir import Node

FLOAT = {
    "Exp": "tl.exp({0})",
    "Log": "tl.log({0})",
    "Sqrt": "tl.sqrt_rn({0})",
    "Rsqrt": "(1.0 / tl.sqrt_rn({0}))",
    "Sigmoid": "sigmoid({0})",
    "Silu": "{0} * sigmoid({0})",
    "Tanh": "tanh({0})",
    "Div": "tl.div_rn({0}, {1})",
    "Pow": "power({0}, {1})",
}  # fmt: skip
"""Operators that compute in fp32 whatever they are given. Lower-case names are functions of `_math.py.jinja`."""

SAME = {
    "Abs": "tl.abs({0})",
    "Neg": "(-{0})",
    "Relu": "larger({0}, 0)",
    "Maximum": "larger({0}, {1})",
    "Minimum": "smaller({0}, {1})",
    "Add": "({0} + {1})",
    "Sub": "({0} - {1})",
    "Mul": "({0} * {1})",
    "FloorDiv": "floor_divide({0}, {1})",
    "Mod": "remainder({0}, {1})",
}
"""Operators that compute in the dtype of their result."""

COMPARE = {
    "Less": "({0} < {1})",
    "LessEqual": "({0} <= {1})",
    "Greater": "({0} > {1})",
    "GreaterEqual": "({0} >= {1})",
    "Equal": "({0} == {1})",
    "NotEqual": "({0} != {1})",
}
BITWISE = {"And": "({0} & {1})", "Or": "({0} | {1})", "Xor": "({0} ^ {1})"}

KEEPS_EXACT = ("Abs", "Neg", "Relu", "Maximum", "Minimum")
"""Operators whose result is one of their operands or its negative, and so is as exact as they are."""


def tile_axes(tiles: list[Tile]) -> tuple[Axis, ...]:
    """Dimension order of an aligned result: that of the largest operand, the others' axes behind it."""
    largest = max(tiles, key=lambda tile: len(tile.axes))
    seen = {axis.name for tile in tiles for axis in tile.axes}
    if len(largest.axes) == len(seen):
        return largest.axes
    from vortex.dsl.axes import TensorType, arranged

    return arranged(unite([TensorType(tile.axes) for tile in tiles]))


def combine(e: Emitter, node: Node, number: int, tiles: list[Tile], form: str, dtype: str) -> Tile:
    axes = tile_axes(tiles)
    shown = [e.align(tile, axes) for tile in tiles]
    if node.op in ("Pow", "FloorDiv", "Mod"):
        # Their functions ask their operands for dtypes, which bare numbers do not have.
        shown = [each if tile.name != each or tile.axes else f"tl.full((), {each}, {TRITON[dtype]})"
                 for each, tile in zip(shown, tiles, strict=True)]  # fmt: skip
    name = e.let(form.format(*shown), node)
    exact = None
    if node.op in KEEPS_EXACT:
        kinds = {tile.exact for tile in tiles if tile.axes or tile.name not in ("0", "0.0")}
        exact = kinds.pop() if len(kinds) == 1 else None
    return Tile(name, axes, dtype, e.pads(number, tiles), exact)


@lowers(*FLOAT)
def lower_float(e: Emitter, number: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number]
    tiles = [e.cast(tile, "fp32") for tile in e.operands(number, scope)]
    return combine(e, node, number, tiles, FLOAT[node.op], "fp32")


@lowers(*SAME)
def lower_same(e: Emitter, number: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number]
    dtype = kind_of(node.type)
    tiles = [e.cast(tile, dtype) for tile in e.operands(number, scope)]
    return combine(e, node, number, tiles, SAME[node.op], dtype)


@lowers(*COMPARE)
def lower_compare(e: Emitter, number: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number]
    common = promote(*e.types(number))
    tiles = [e.cast(tile, common) for tile in e.operands(number, scope)]
    return combine(e, node, number, tiles, COMPARE[node.op], "bool")


@lowers(*BITWISE)
def lower_bitwise(e: Emitter, number: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number]
    dtype = kind_of(node.type)
    tiles = [e.cast(tile, dtype) for tile in e.operands(number, scope)]
    return combine(e, node, number, tiles, BITWISE[node.op], dtype)


@lowers("Not")
def lower_not(e: Emitter, number: int, scope: Scope | None) -> Tile:
    tiles = e.operands(number, scope)
    return combine(e, e.function.nodes[number], number, tiles, "({0} == 0)", "bool")


@lowers("Where")
def lower_where(e: Emitter, number: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number]
    dtype = kind_of(node.type)
    condition, a, b = e.operands(number, scope)
    tiles = [condition, e.cast(a, dtype), e.cast(b, dtype)]
    axes = tile_axes(tiles)
    # tl.where takes its dtype from the branches; two numbers would decide for themselves.
    shown = [e.align(tile, axes) for tile in tiles]
    if not a.axes and not b.axes:
        shown[1] = f"tl.full((), {shown[1]}, {TRITON[dtype]})" if dtype != "bool" else shown[1]
    name = e.let(f"tl.where({', '.join(shown)})", node)
    return Tile(name, axes, dtype, e.pads(number, tiles))


ROUND = {"bf16": "to_bf16({0})", "fp16": "({0}).to(tl.float16).to(tl.float32)", "fp8": "to_fp8({0})"}


@lowers("Cast")
def lower_cast(e: Emitter, number: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number]
    to = str(node.attr("to"))
    (tile,) = e.operands(number, scope)
    if to in ("int32", "bool"):
        tile = e.cast(tile, to)
        return Tile(e.let(tile.name, node), tile.axes, to, tile.pads)
    tile = e.cast(tile, "fp32")
    zeros = {name: 0.0 for name, value in tile.pads.items() if value == 0 and name}
    if to == "fp32":
        return tile
    if to == "sign":
        return Tile(e.let(f"tl.where({tile.name} >= 0, 1.0, -1.0)", node), tile.axes, "fp32", {}, "bf16")
    if to in ("int8", "int4"):
        steps, scale = quantised(e, node, tile, scope)
        shown = e.align(scale, steps.axes)
        return Tile(e.let(f"{steps.name} * {shown}", node), steps.axes, "fp32", zeros)
    exact = to if to in ("bf16", "fp16") else "bf16"
    return Tile(e.let(ROUND[to].format(tile.name), node), tile.axes, "fp32", zeros, exact)


def quantised(e: Emitter, node: Node, tile: Tile, scope: Scope | None) -> tuple[Tile, Tile]:
    """Integers within the limit, and one fp16 scale per last axis of the operand, both as fp32."""
    limit = {"int8": 127, "int4": 7}[str(node.attr("to"))]
    last = node.type.axes[-1]
    at = tile.names.index(last.name)
    held = e.held(tile, [last.name], 0.0, scope)
    rest = tuple(axis for axis in tile.axes if axis.name != last.name)
    largest = e.let(f"tl.max(tl.abs({held.name}), {at})", node)
    scale = Tile(e.let(f"tl.div_rn({largest}, {limit}.0).to(tl.float16).to(tl.float32)", node), rest, "fp32")
    shown = e.align(scale, tile.axes)
    divisor = e.let(f"tl.where({shown} > 0, {shown}, 1.0)", node)
    steps = e.let(f"round_even(tl.div_rn({held.name}, {divisor}))", node)
    steps = e.let(f"tl.where({shown} > 0, tl.clamp({steps}, {-limit}.0, {limit}.0), 0.0)", node)
    return Tile(steps, tile.axes, "fp32", held.pads), scale
