"""Writes the body of the summarise kernel: what forward_cache evaluates, and how an entry is rounded and packed."""

from __future__ import annotations

import math

from vortex.codegen.lowering.elementwise import quantised
from vortex.codegen.memory import Arguments, Memory, offsets, row_elements
from vortex.codegen.tile import Emitter, Tile, lanes_of
from vortex.dsl.axes import Axis
from vortex.dsl.ir import Program


def write_summary(program: Program, entry_dtype: str, kv_dtype: str) -> tuple[Emitter, Arguments, list[str]]:
    """The code of forward_cache for one (block, KV head): values, then stores."""
    arguments = Arguments()
    memory = Memory(program, arguments, (), "cache", entry_dtype, kv_dtype)
    e = Emitter(program.cache, program.file)
    e.leaf = memory.read_leaf
    stores: list[str] = []
    for store in program.cache.stores:
        entry = program.entry(store.name)
        storage = entry_dtype if entry.storage == "kv" else entry.storage
        store_entry(e, memory, store.value, entry.name, entry.axes, storage, stores)
    return e, arguments, stores


def store_entry(
    e: Emitter, memory: Memory, value: int, name: str, axes: tuple[Axis, ...], storage: str, stores: list[str]
) -> None:
    """Rounds a value to its storage and writes it, with its scales where it has them."""
    pointer = memory.arguments.pointer("entry", name)
    row = row_elements(axes, storage)
    base = f"{pointer} + (pool_block * HEADS + head) * {row}"
    node = e.function.nodes[value]
    if storage in ("int8", "int4"):
        (source,) = e.operands(value, None)
        steps, scale = quantised(e, node, e.cast(source, "fp32"), None)
        tile = Tile(e.let(f"{steps.name}.to(tl.int32)"), steps.axes, "int32", steps.pads)
        scales = memory.arguments.pointer("entry_scale", name)
        rest = axes[:-1]
        count = max(1, math.prod(axis.size or 1 for axis in rest))
        address = " + ".join([f"{scales} + (pool_block * HEADS + head) * {count}", *offsets(e, rest, rest)])
        mask = e.mask(rest, None)
        stores.append(f"tl.store({address}, {e.align(scale, rest)}{f', mask={mask}' if mask else ''})")
    else:
        tile = e.evaluate(value, None)
        if storage == "fp32" or tile.dtype == "bool":
            tile = e.cast(
                e.cast(tile, "int32") if tile.dtype == "bool" else tile,
                "fp32" if storage == "fp32" else "int32",
            )
    if storage in ("int4", "sign"):
        tile, axes = packed(e, tile, axes, storage)
    address = " + ".join([base, *offsets(e, axes, axes)])
    mask = e.mask(axes, None)
    name_ = e.full(tile, axes)
    if storage == "bf16" and tile.exact != "bf16":
        name_ = f"to_bf16({name_})"
    stores.append(f"tl.store({address}, {name_}{f', mask={mask}' if mask else ''})")


def packed(e: Emitter, tile: Tile, axes: tuple[Axis, ...], storage: str) -> tuple[Tile, tuple[Axis, ...]]:
    """Values of 4 or 1 bits, several in a byte, the first in the lowest bits."""
    per_byte, bits = {"int4": (2, 4), "sign": (8, 1)}[storage]
    *rest, last = axes
    shown = e.align(tile, axes)
    value = f"({shown}).to(tl.int32) & 15" if storage == "int4" else f"({shown} >= 0).to(tl.int32)"
    mask = e.mask(axes, None, [last.name])
    held = e.let(f"tl.where({mask}, {value}, 0)" if mask else value)
    if lanes_of(last.size or 1) < per_byte:
        return packed_short(e, held, axes, bits)
    cell, part = Axis(last.name, -(-(last.size or 1) // per_byte)), Axis("(part)", per_byte)
    lanes = int(e.lanes(last)) // per_byte
    shape = ", ".join([*(e.lanes(axis) for axis in rest), str(lanes), str(per_byte)])
    split = e.let(f"tl.reshape({held}, ({shape}))")
    shift = e.spread(f"tl.arange(0, {per_byte}) * {bits}", part, (*rest, cell, part))
    name = e.let(f"tl.sum({split} << {shift}, {len(rest) + 1})")
    return Tile(name, (*rest, cell), "int32"), (*rest, cell)


def packed_short(e: Emitter, held: str, axes: tuple[Axis, ...], bits: int) -> tuple[Tile, tuple[Axis, ...]]:
    """As `packed`, for a last axis that fits one byte: a tile cannot be cut below one lane, so shifts are summed."""
    *rest, last = axes
    shift = e.spread(f"tl.arange(0, {e.lanes(last)}) * {bits}", last, axes)
    cell = Axis(last.name, 1)
    name = e.let(f"tl.sum({held} << {shift}, {len(rest)})")
    # A sum over the only axis is a scalar, which has no shape to change.
    shape = f"({', '.join([*(e.lanes(axis) for axis in rest), '1'])},)"
    whole = f"tl.reshape({name}, {shape})" if rest else f"tl.full({shape}, 0, tl.int32) + {name}"
    return Tile(e.let(whole), (*rest, cell), "int32"), (*rest, cell)
