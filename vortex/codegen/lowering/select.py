"""Index sets along axes other than block, lookups, and positions. Sets of blocks are made by selection kernels."""

from __future__ import annotations

from vortex.codegen.lowering import lowers
from vortex.codegen.lowering.shape import pick, view
from vortex.codegen.tile import Emitter, Scope, Tile
from vortex.dsl.axes import Axis


@lowers("topK")
def lower_top_k(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    """Members of an axis within a tile, as a boolean over it: those that fewer than k others beat."""
    node = e.function.nodes[number_]
    name, k = str(node.attr("dim")), int(node.attr("k"))  # type: ignore[arg-type]
    (tile,) = e.operands(number_, scope)
    tile = e.cast(tile, "fp32")
    clean = e.let(f'tl.where({tile.name} == {tile.name}, {tile.name}, float("-inf"))', node)
    held = e.held(Tile(clean, tile.axes, "fp32"), [name], float("-inf"), scope)
    axis = held.axis(name)
    other = Axis("(other)", axis.size)
    rest = [each for each in held.axes if each.name != name]
    axes = (*rest, axis, other)
    mine = e.align(held, axes)
    theirs = e.align(Tile(held.name, tuple(other if a.name == name else a for a in held.axes), "fp32"), axes)
    lane = f"tl.arange(0, {e.lanes(axis)})"
    before = f"({e.spread(lane, other, axes)} < {e.spread(lane, axis, axes)})"
    beats = f"({theirs} > {mine}) | (({theirs} == {mine}) & {before})"
    rank = e.let(f"tl.sum(({beats}).to(tl.int32), {len(axes) - 1})", node)
    shown = e.align(held, (*rest, axis))
    name_ = e.let(f'({rank} < {k}) & ({shown} > float("-inf"))', node)
    return Tile(name_, (*rest, axis), "bool", {name: 0.0})


def member_ids(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    """Ascending members of a set along another axis, over an axis of its count; -1 where there is none."""
    node = e.function.nodes[number_]
    assert node.type.members is not None and node.type.members.count is not None
    name = node.type.members.axis
    mask = e.evaluate(number_, scope)
    axis = mask.axis(name)
    at = mask.names.index(name)
    chosen = e.let(f"({mask.name}).to(tl.int32)", node)
    place = e.let(f"tl.cumsum({chosen}, {at}) - 1", node)
    count = Axis("(member)", node.type.members.count)
    rest = [each for each in mask.axes if each.name != name]
    axes = (*rest, count, axis)
    wanted = e.spread(f"tl.arange(0, {e.lanes(count)})", count, axes)
    hit = f"({e.align(Tile(chosen, mask.axes, 'int32'), axes)} != 0) & "
    hit += f"({e.align(Tile(place, mask.axes, 'int32'), axes)} == {wanted})"
    lane = e.spread(f"tl.arange(0, {e.lanes(axis)})", axis, axes)
    ids = e.let(f"tl.sum(tl.where({hit}, {lane} + 1, 0), {len(axes) - 1}) - 1", node)
    return Tile(
        ids, tuple(Axis(name, count.size) if each.name == "(member)" else each for each in axes[:-1]), "int32"
    )


@lowers("Gather")
def lower_gather(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    source, index = node.inputs
    if node.attr("dim") is None:
        # Lanes of this scope are the members: any value over all blocks is evaluated at their numbers.
        assert scope is not None
        return e.evaluate(source, scope)
    name = str(node.attr("dim"))
    index_type = e.function.nodes[index].type
    ids = (
        member_ids(e, index, scope)
        if index_type.members is not None
        else e.cast(e.evaluate(index, scope), "int32")
    )
    viewed = view(e, number_, source, {name: ids}, scope)
    if viewed is not None:
        return viewed
    return pick(e, number_, e.evaluate(source, scope), name, "", (), scope, index_tile=ids)


@lowers("Position")
def lower_position(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    assert scope is not None
    shown = scope.block if node.attr("of") == "index" else f"(finished - 1 - {scope.block})"
    return Tile(e.let(shown, node), node.type.axes, "int32")


@lowers("First", "Last")
def lower_static(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    assert scope is not None
    n = int(node.attr("n"))  # type: ignore[arg-type]
    shown = f"{scope.block} < {n}" if node.op == "First" else f"{scope.block} >= finished - {n}"
    return Tile(e.let(shown, node), node.type.axes, "bool")


@lowers("Union")
def lower_union(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    tiles = [e.cast(tile, "bool") for tile in e.operands(number_, scope)]
    return Tile(e.let(" | ".join(tile.name for tile in tiles), node), node.type.axes, "bool")
