"""Operators along an axis. Along `block` they are read from what a row kernel left in memory: see `passes`."""

from __future__ import annotations

import math
from typing import Any

from vortex.codegen.lowering import lowers
from vortex.codegen.lowering.reduce import reduced_axes
from vortex.codegen.lowering.shape import pick
from vortex.codegen.tile import Emitter, Scope, Tile, number
from vortex.dsl.axes import Axis


@lowers("CumSum")
def lower_cumsum(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    (name,) = reduced_axes(node)
    (tile,) = e.operands(number_, scope)
    tile = e.cast(tile, "fp32")
    return Tile(e.let(f"tl.cumsum({tile.name}, {tile.names.index(name)})", node), tile.axes, "fp32", {})


def neighbours(width: int) -> list[int]:
    """Offsets of the elements around one, (width - 1) // 2 of them before it."""
    before = (width - 1) // 2
    return [offset - before for offset in range(width)]


@lowers("Conv1d", "MaxPool1d")
def lower_window(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    (name,) = reduced_axes(node)
    (tile,) = e.operands(number_, scope)
    tile = e.cast(tile, "fp32")
    axis = tile.axis(name)
    assert axis.size is not None
    weights: Any = node.attr("weights")
    width = len(weights) if node.op == "Conv1d" else int(node.attr("size"))  # type: ignore[arg-type]
    total: Tile | None = None
    for place, offset in enumerate(neighbours(width)):
        part = shifted(e, number_, tile, axis, offset, scope, 0.0 if node.op == "Conv1d" else -math.inf)
        scaled = f"{part.name} * {number(weights[place], 'fp32')}" if node.op == "Conv1d" else part.name
        if total is None:
            total = Tile(e.let(scaled, node), part.axes, "fp32")
        else:
            joined = f"{total.name} + {scaled}" if node.op == "Conv1d" else f"larger({total.name}, {scaled})"
            total = Tile(e.let(joined, node), part.axes, "fp32")
    assert total is not None
    return total


def shifted(
    e: Emitter, number_: int, tile: Tile, axis: Axis, offset: int, scope: Scope | None, outside: float
) -> Tile:
    """The tile moved along an axis, `outside` beyond its ends."""
    index = f"(tl.arange(0, {e.lanes(axis)}) + {offset})"
    moved = pick(e, number_, tile, axis.name, index, (axis,), scope)
    if outside == 0.0:
        return moved
    lane = e.spread(index, axis, moved.axes)
    inside = f"({lane} >= 0) & ({lane} < {axis.size})"
    name = e.let(f"tl.where({inside}, {moved.name}, {number(outside, 'fp32')})")
    return Tile(name, moved.axes, "fp32")
