"""Numbers. Leaves that read memory are lowered by the kernel that knows where they lie."""

from __future__ import annotations

from vortex.codegen.lowering import lowers
from vortex.codegen.tile import Emitter, Scope, Tile, number


@lowers("Const")
def lower_const(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    value = node.attr("value")
    exact = "bf16" if value in (0, 1, -1) else None
    return Tile(number(value, node.type.dtype), (), node.type.dtype, {"": float(value)}, exact)  # type: ignore[arg-type]


@lowers("Input", "Entry", "State", "Weight")
def lower_leaf(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    assert e.leaf is not None
    return e.leaf(e, number_, scope, {})
