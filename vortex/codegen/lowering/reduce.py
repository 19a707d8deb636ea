"""Reductions. Within a tile they end at once; along a block axis longer than the tile they run over several.

`Reducer` says how one reduction starts, takes in a tile, and ends: the passes of a row kernel use the same object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vortex.codegen.lowering import lowers
from vortex.codegen.tile import Emitter, Scope, Tile, kind_of, number
from vortex.dsl.axes import Axis
from vortex.dsl.ir import Node

REDUCE = {
    "Sum": "tl.sum",
    "Mean": "tl.sum",
    "L2Norm": "tl.sum",
    "Max": "tl.max",
    "Min": "tl.min",
    "GeMM": "tl.sum",
}
JOIN = {
    "Sum": "{0} + {1}",
    "Mean": "{0} + {1}",
    "L2Norm": "{0} + {1}",
    "GeMM": "{0} + {1}",
    "Max": "tl.maximum({0}, {1})",
    "Min": "tl.minimum({0}, {1})",
}
NEUTRAL = {"Sum": 0.0, "Mean": 0.0, "L2Norm": 0.0, "GeMM": 0.0, "Max": float("-inf"), "Min": float("inf")}
ARGUMENT = ("ArgMax", "ArgMin")


def reduced_axes(node: Node) -> tuple[str, ...]:
    return tuple(node.attr("dim"))  # type: ignore[arg-type]


def prepared(e: Emitter, node: Node, tile: Tile, axes: Sequence[str], scope: Scope | None) -> Tile:
    """The operand as it is summed or compared, with neutral values in padded lanes of the reduced axes."""
    dtype = kind_of(node.type) if node.op not in ARGUMENT else "fp32"
    tile = e.cast(tile, dtype)
    if node.op == "L2Norm":
        name = e.let(f"{tile.name} * {tile.name}", node)
        zero = {axis: 0.0 for axis, value in tile.pads.items() if value == 0}
        tile = Tile(name, tile.axes, "fp32", zero)
    return e.held(tile, axes, NEUTRAL[node.op], scope)


def shrink(e: Emitter, node: Node, tile: Tile, axes: Sequence[str], stem: str = "v") -> Tile:
    """The tile reduced over its named axes, innermost dimension first."""
    expression, rest = tile.name, list(tile.axes)
    for name in sorted(axes, key=lambda name: -tile.names.index(name)):
        at = [axis.name for axis in rest].index(name)
        expression = f"{REDUCE[node.op]}({expression}, {at})"
        del rest[at]
    pads = {axis.name: tile.pads[axis.name] for axis in rest if tile.pads.get(axis.name) == 0}
    return Tile(e.let(expression, node, stem), tuple(rest), tile.dtype, pads)


def finished(e: Emitter, node: Node, tile: Tile, count: str | None) -> Tile:
    """The reduction's result from what its tiles added up to; `count` elements went into a mean."""
    if node.op == "Mean":
        return Tile(e.let(f"{tile.name} / {count}", node), tile.axes, "fp32", tile.pads)
    if node.op == "L2Norm":
        return Tile(e.let(f"tl.sqrt_rn({tile.name})", node), tile.axes, "fp32", tile.pads)
    return tile


def element_count(axes: Sequence[Axis], scope: Scope | None) -> str:
    """Elements that a mean over these axes divides by, as a float expression."""
    size = 1
    ragged = False
    for axis in axes:
        if axis.size is None:
            ragged = True
        else:
            size *= axis.size
    if not ragged:
        return f"{float(size)!r}"
    assert scope is not None
    return f"(({scope.size}) * {size}).to(tl.float32)"


@lowers("Sum", "Mean", "Max", "Min", "L2Norm")
def lower_reduce(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    axes = reduced_axes(node)
    product = product_of(e, number_, scope)
    if product is not None:
        return product
    (operand,) = e.operands(number_, scope)
    gone = [operand.axis(name) for name in axes]
    tile = shrink(e, node, prepared(e, node, operand, axes, scope), axes)
    return finished(e, node, tile, element_count(gone, scope))


def product_of(e: Emitter, number_: int, scope: Scope | None) -> Tile | None:
    """A sum of products of two values that share only the summed axis, on tensor cores; None where it is not one."""
    from vortex.codegen.lowering.matmul import CONTRACTED, dot_tiles, renamed

    node = e.function.nodes[number_]
    source = e.function.nodes[node.inputs[0]]
    axes = reduced_axes(node)
    if node.op != "Sum" or source.op != "Mul" or len(axes) != 1 or kind_of(node.type) != "fp32":
        return None
    a, b = (e.function.nodes[each].type for each in source.inputs)
    shared = set(a.names) & set(b.names)
    if shared != {axes[0]} or not (len(a.axes) >= 2 and len(b.axes) >= 2) or node.inputs[0] in e.materialised:
        return None
    left, right = (e.cast(e.evaluate(each, scope), "fp32") for each in source.inputs)
    if b.axis("block") is not None:
        left, right = right, left
    return dot_tiles(e, node, renamed(left, axes[0]), renamed(right, axes[0]), CONTRACTED, scope)


@dataclass(frozen=True)
class Best:
    """Best value and its position, of the tiles seen so far."""

    value: Tile
    position: Tile


def best_in_tile(e: Emitter, node: Node, operand: Tile, scope: Scope | None) -> Best:
    """Best element along one axis of a tile, the first of equal ones; NaN ranks last."""
    (name,) = reduced_axes(node)
    worst = number(float("-inf") if node.op == "ArgMax" else float("inf"), "fp32")
    held = e.cast(operand, "fp32")
    clean = e.let(f"tl.where({held.name} == {held.name}, {held.name}, {worst})", node)
    tile = Tile(clean, held.axes, "fp32", {})
    tile = e.held(tile, [name], float("-inf") if node.op == "ArgMax" else float("inf"), scope)
    at = tile.names.index(name)
    rest = tuple(axis for axis in tile.axes if axis.name != name)
    value = e.let(f"{'tl.max' if node.op == 'ArgMax' else 'tl.min'}({tile.name}, {at})", node)
    shown = e.align(Tile(value, rest, "fp32"), tile.axes)
    index = e.index(tile.axis(name), tile.axes, scope)
    mask = e.mask(tile.axes, scope, [name])
    hit = f"({tile.name} == {shown})" + (f" & {mask}" if mask else "")
    position = e.let(f"tl.min(tl.where({hit}, {index}, 2147483647), {at})", node)
    return Best(Tile(value, rest, "fp32"), Tile(position, rest, "int32"))


@lowers(*ARGUMENT)
def lower_argument(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    (operand,) = e.operands(number_, scope)
    best = best_in_tile(e, node, operand, scope).position
    name = e.let(f"tl.where({best.name} == 2147483647, -1, {best.name})", node)
    return Tile(name, best.axes, "int32")
