"""Operators that rearrange: views of leaves where possible, else picks by a one-hot sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from vortex.codegen.lowering import lowers
from vortex.codegen.tile import Emitter, Scope, Tile, kind_of, number
from vortex.dsl.axes import Axis


@lowers("Transpose")
def lower_transpose(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    (tile,) = e.operands(number_, scope)
    return tile


@lowers("Rename")
def lower_rename(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    (tile,) = e.operands(number_, scope)
    names = {old: str(new) for old, new in node.attrs}
    axes = tuple(replace(axis, name=names.get(axis.name, axis.name)) for axis in tile.axes)
    pads = {names.get(name, name): value for name, value in tile.pads.items()}
    return Tile(tile.name, axes, tile.dtype, pads, tile.exact)


def pick(
    e: Emitter,
    number_: int,
    tile: Tile,
    along: str,
    index: str | Axis,
    fresh: Sequence[Axis],
    scope: Scope | None,
    index_tile: Tile | None = None,
) -> Tile:
    """Elements of `tile` along one axis, at positions given over the `fresh` axes; outside the axis 0.

    index       the positions as an expression over `fresh`, or an axis: its own positions
    index_tile  the positions as a tile that may share axes with `tile`
    """
    node = e.function.nodes[number_]
    source = tile.axis(along)
    # The picked axis gets a name of its own, so that a fresh axis may take the old one.
    inner = replace(source, name="(picked)")
    held = Tile(
        tile.name, tuple(inner if axis.name == along else axis for axis in tile.axes), tile.dtype,
        {("(picked)" if name == along else name): value for name, value in tile.pads.items()},
    )  # fmt: skip
    if index_tile is None:
        if isinstance(index, Axis):
            index = f"tl.arange(0, {e.lanes(index)})"
        index_tile = Tile(f"({index})", tuple(fresh), "int32")
    rest = [axis for axis in held.axes if axis.name != "(picked)"]
    rest += [axis for axis in index_tile.axes if axis.name not in [each.name for each in rest]]
    axes = (*rest, inner)
    position = e.spread(f"tl.arange(0, {e.lanes(source)})", inner, axes)
    hit = f"({e.align(index_tile, axes)} == {position})"
    if e.padded(source):
        hit += f" & ({position} < {source.size})"
    zero = number(0, held.dtype) if held.dtype != "bool" else "0"
    value = e.align(held, axes) if held.dtype != "bool" else f"({e.align(held, axes)}).to(tl.int32)"
    name = e.let(f"tl.sum(tl.where({hit}, {value}, {zero}), {len(rest)})", node)
    if held.dtype == "bool":
        name = e.let(f"{name} != 0", node)
    pads = {each: value for each, value in held.pads.items() if value == 0 and each != "(picked)"}
    shared = {axis.name for axis in index_tile.axes}
    return Tile(
        name,
        tuple(rest),
        held.dtype,
        {each: value for each, value in pads.items() if each not in shared},
        tile.exact,
    )


def leaf_of(e: Emitter, number_: int) -> int | None:
    """The leaf that a node is a mere view of (through transposes), if it reads memory."""
    node = e.function.nodes[number_]
    while node.op == "Transpose":
        number_ = node.inputs[0]
        node = e.function.nodes[number_]
    reads = node.op in ("Input", "Entry", "State", "Weight") or number_ in e.materialised
    return number_ if reads else None


def view(
    e: Emitter, number_: int, source: int, overrides: dict[str, Tile], scope: Scope | None
) -> Tile | None:
    """A leaf read at other positions of some axes; None where the operand is no leaf."""
    leaf = leaf_of(e, source)
    if leaf is None:
        return None
    if leaf in e.materialised:
        return e.materialised[leaf](e, leaf, scope, overrides)
    assert e.leaf is not None
    return e.leaf(e, leaf, scope, overrides)


@lowers("Slice")
def lower_slice(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    (source,) = node.inputs
    types = e.types(number_)[0]
    overrides: dict[str, Tile] = {}
    for axis, index in zip(types.axes, node.attr("index"), strict=True):  # type: ignore[arg-type]
        if isinstance(index, int):
            overrides[axis.name] = Tile(str(index), (), "int32")
        elif index is not None:
            start, stop, step = cast("tuple[int, int, int]", index)
            fresh = Axis(axis.name, len(range(start, stop, step)))
            overrides[axis.name] = Tile(
                f"({start} + {step} * tl.arange(0, {e.lanes(fresh)}))", (fresh,), "int32"
            )
    whole = not any(axis.name in e.wide for axis in types.axes)
    viewed = view(e, number_, source, overrides, scope) if whole else None
    if viewed is not None:
        return viewed
    tile = e.evaluate(source, scope)
    for name, position in overrides.items():
        tile = pick(e, number_, tile, name, "", (), scope, index_tile=position)
    return tile


@lowers("Concat")
def lower_concat(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    name = str(node.attr("dim"))
    joined = node.type.axis(name)
    assert joined is not None
    dtype = kind_of(node.type)
    offset, result = 0, None
    for tile in e.operands(number_, scope):
        size = tile.axis(name).size
        assert size is not None
        index = f"(tl.arange(0, {e.lanes(joined)}) - {offset})"
        part = e.cast(pick(e, number_, tile, name, index, (joined,), scope), dtype)
        if result is None:
            result = part
        else:
            axes = (*result.axes, *(axis for axis in part.axes if axis.name not in result.names))
            here = e.spread(f"tl.arange(0, {e.lanes(joined)}) >= {offset}", joined, axes)
            chosen = e.let(f"tl.where({here}, {e.align(part, axes)}, {e.align(result, axes)})", node)
            result = Tile(chosen, axes, dtype)
        offset += size
    assert result is not None
    return Tile(result.name, result.axes, dtype)


@lowers("Split")
def lower_split(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    (source,) = node.inputs
    name = str(node.attr("axis"))
    fresh = tuple(Axis(str(each), int(size)) for each, size in node.attrs if each != "axis")  # type: ignore[arg-type]
    terms, stride = [], 1
    for axis in reversed(fresh):
        terms.append(f"{e.spread(f'tl.arange(0, {e.lanes(axis)})', axis, fresh)} * {stride}")
        stride *= axis.size or 1
    index = Tile(f"({' + '.join(reversed(terms))})", fresh, "int32")
    viewed = view(e, number_, source, {name: index}, scope)
    if viewed is not None:
        return viewed
    tile = e.evaluate(source, scope)
    plain = not any(e.padded(axis) for axis in fresh) and not e.padded(tile.axis(name))
    if plain:
        axes = tuple(each for axis in tile.axes for each in (fresh if axis.name == name else (axis,)))
        shape = ", ".join(e.lanes(axis) for axis in axes)
        pads = {each: value for each, value in tile.pads.items() if each != name}
        return Tile(e.let(f"tl.reshape({tile.name}, ({shape},))", node), axes, tile.dtype, pads, tile.exact)
    return pick(e, number_, tile, name, "", (), scope, index_tile=index)


@lowers("Merge")
def lower_merge(e: Emitter, number_: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number_]
    names = [str(each) for each in node.attr("axes")]  # type: ignore[union-attr]
    merged = node.type.axis(str(node.attr("to")))
    assert merged is not None
    (before,) = e.types(number_)
    parts = [each for each in before.axes if each.name in names]
    if any(e.padded(axis) for axis in (*parts, merged)):
        places, stride = {}, 1
        for name in reversed(names):
            size = before.axis(name).size  # type: ignore[union-attr]
            place = f"((tl.arange(0, {e.lanes(merged)}) // {stride}) % {size})"
            places[name] = Tile(place, (merged,), "int32")
            stride *= size or 1
        viewed = view(e, number_, node.inputs[0], places, scope)
        if viewed is not None:
            return viewed
    (tile,) = e.operands(number_, scope)
    old = [tile.axis(name) for name in names]
    rest = [axis for axis in tile.axes if axis.name not in names]
    if not any(e.padded(axis) for axis in (*old, merged)):
        shape = ", ".join(e.lanes(axis) for axis in (*rest, merged))
        name = e.let(f"tl.reshape({e.align(tile, (*rest, *old))}, ({shape},))", node)
        pads = {each: value for each, value in tile.pads.items() if each not in names}
        return Tile(name, (*rest, merged), tile.dtype, pads, tile.exact)
    lane = f"tl.arange(0, {e.lanes(merged)})"
    stride, shared = 1, replace(merged, name="(merged)")
    for axis in reversed(old):
        index = Tile(f"(({lane} // {stride}) % {axis.size})", (shared,), "int32")
        tile = pick(e, number_, tile, axis.name, "", (), scope, index_tile=index)
        stride *= axis.size or 1
    axes = tuple(merged if axis.name == "(merged)" else axis for axis in tile.axes)
    return Tile(tile.name, axes, tile.dtype, {}, tile.exact)
