"""Addresses: how a kernel reads leaves and scratch buffers, and where it writes.

Every pointer is a kernel argument with a generated name; `Arguments` remembers what each stands for, so that the
launcher can pass it. Offsets are 64-bit from the first product with a row, slot or block number on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vortex.codegen.lowering.row import neighbours
from vortex.codegen.steps import Buffer
from vortex.codegen.tile import Emitter, Scope, Tile, number
from vortex.dsl.axes import Axis
from vortex.dsl.ir import Node, Program


@dataclass(frozen=True)
class Argument:
    """One pointer or stride of a kernel.

    kind  input, scale, entry, entry_scale, state, weight, buffer, ids, counts: what `name` is looked up in
    """

    variable: str
    kind: str
    name: str


@dataclass
class Arguments:
    """The arguments of one kernel, in order of first use."""

    known: dict[tuple[str, str], Argument] = field(default_factory=dict)
    stems: dict[str, int] = field(default_factory=dict)

    def pointer(self, kind: str, name: str) -> str:
        if (kind, name) not in self.known:
            self.stems[kind] = self.stems.get(kind, 0) + 1
            self.known[kind, name] = Argument(f"{kind}_{self.stems[kind] - 1}", kind, name)
        return self.known[kind, name].variable

    def ordered(self) -> tuple[Argument, ...]:
        return tuple(self.known.values())


@dataclass(frozen=True)
class Place:
    """A tensor of axes at a base address, contiguous unless strides are given (element counts or variables)."""

    base: str
    axes: tuple[Axis, ...]
    strides: tuple[str, ...]


def contiguous(axes: Sequence[Axis]) -> tuple[str, ...]:
    strides, step = [], 1
    for axis in reversed(axes):
        strides.append(str(step))
        step *= axis.size or 1
    return tuple(reversed(strides))


def offsets(e: Emitter, own: tuple[Axis, ...], axes: tuple[Axis, ...]) -> list[str]:
    """Terms of the offset of a contiguous tensor over `own`, shaped for a tile over `axes`."""
    terms = []
    for axis, stride in zip(own, contiguous(own), strict=True):
        shown = e.spread(f"tl.arange(0, {e.lanes(axis)})", axis, axes)
        terms.append(shown if stride == "1" else f"{shown} * {stride}")
    return terms


@dataclass
class Memory:
    """How one function's kernel reaches memory.

    block_size, group  of the program; `entry_dtype` says how a "kv" entry is stored
    """

    program: Program
    arguments: Arguments
    buffers: tuple[Buffer, ...] = ()
    which: str = "indexer"
    entry_dtype: str = "bf16"
    kv_dtype: str = "bf16"

    # Reading

    def read_leaf(self, e: Emitter, number_: int, scope: Scope | None, overrides: dict[str, Tile]) -> Tile:
        node = e.function.nodes[number_]
        name = str(node.attr("name"))
        if node.op == "Input":
            return self._input(e, node, name, scope, overrides)
        if node.op == "Entry":
            return self._entry(e, node, name, scope, overrides)
        if node.op == "State":
            return self._state(e, node, name, scope, overrides)
        pointer = self.arguments.pointer("weight", name)
        declared = self.program.weight(name)
        head = " + head * " + str(_count(declared.axes)) if declared.per_kv else ""
        place = Place(f"{pointer}{head}", declared.axes, contiguous(declared.axes))
        exact = {"bf16": "bf16", "fp16": "fp16"}.get(declared.dtype)
        return self.load(e, node, place, scope, overrides, node.type.dtype, exact)

    def _input(
        self, e: Emitter, node: Node, name: str, scope: Scope | None, overrides: dict[str, Tile]
    ) -> Tile:
        axes = tuple(axis for axis in node.type.axes if axis.size is not None)
        if name == "q":
            pointer = self.arguments.pointer("input", "q")
            stride, step = (
                self.arguments.pointer("stride", "q_row"),
                self.arguments.pointer("stride", "q_head"),
            )
            group = self.program.shape.group
            base = f"{pointer} + request.to(tl.int64) * {stride} + head * {group} * {step}"
            return self.load(
                e, node, Place(base, axes, (step, "1")), scope, overrides, "fp32", self._kv_exact(name)
            )
        pointer = self.arguments.pointer("input", name)
        slot, head = (
            self.arguments.pointer("stride", f"{name}_slot"),
            self.arguments.pointer("stride", f"{name}_head"),
        )
        base = f"{pointer} + head * {head}"
        place = Place(base, axes, (slot, "1"))
        block = self._block_base(e, scope, f"{self.program.policy.block_size} * {slot}", overrides)
        scale = self.kv_dtype == "fp8"
        exact = None if scale else self._kv_exact(name)
        tile = self.load(e, node, place, scope, overrides, "fp32", exact, block, once=not overrides)
        if not scale:
            return tile
        factor = self.arguments.pointer("scale", name)
        return Tile(e.let(f"{tile.name} * tl.load({factor})", node), tile.axes, "fp32", tile.pads)

    def _kv_exact(self, name: str) -> str | None:
        return self.kv_dtype if self.kv_dtype in ("bf16", "fp16") else None

    def _block_base(
        self, e: Emitter, scope: Scope | None, stride: str, overrides: dict[str, Tile]
    ) -> tuple[str, Tile] | None:
        """Offsets of the pool block of every lane, with what shape they have; in forward_cache, of the one block."""
        if self.which == "cache":
            return f"pool_block * ({stride})", Tile("pool_block", (), "int32")
        if "block" in overrides:
            ids = overrides["block"]
            pool = e.let(
                f"pool_block_of(pages, {ids.name}, ({ids.name} >= 0) & ({ids.name} < finished), BLOCKS_PER_PAGE)"
            )
            return f"{pool} * ({stride})", Tile(pool, ids.axes, "int32")
        assert scope is not None
        pool = self.pool_blocks(e, scope)
        return f"{pool} * ({stride})", Tile(pool, (Axis("block", None),), "int32")

    def pool_blocks(self, e: Emitter, scope: Scope) -> str:
        """Variable with the pool block ids of the lanes, loaded once a sweep."""
        cached = scope.memo.get(-1)
        if cached is None:
            name = e.fresh("pool")
            line = f"{name} = pool_block_of(pages, {scope.block}, {scope.valid}, BLOCKS_PER_PAGE)"
            # Page tables stand before a step begins: they are read while the kernel before this one ends.
            (e.body if e.early is None else e.early).append(line)
            scope.memo[-1] = cached = Tile(name, (Axis("block", None),), "int32")
        return cached.name

    def _entry(
        self, e: Emitter, node: Node, name: str, scope: Scope | None, overrides: dict[str, Tile]
    ) -> Tile:
        entry = self.program.entry(name)
        storage = self.entry_dtype if entry.storage == "kv" else entry.storage
        pointer = self.arguments.pointer("entry", name)
        row = row_elements(entry.axes, storage)
        block = self._block_base(e, scope, f"HEADS * {row}", overrides)
        base = f"{pointer} + head * {row}"
        if storage in ("int4", "sign"):
            tile = self._packed(e, node, entry.axes, storage, base, block, scope, overrides)
        else:
            exact = storage if storage in ("bf16", "fp16") else "bf16" if storage == "fp8" else None
            place = Place(base, entry.axes, contiguous(entry.axes))
            tile = self.load(
                e, node, place, scope, overrides, node.type.dtype, exact, block, once=not overrides
            )
        if storage in ("int8", "int4"):
            tile = self._scaled(e, node, entry.axes, name, tile, scope, overrides)
        return tile

    def _packed(
        self, e: Emitter, node: Node, axes: tuple[Axis, ...], storage: str, base: str,
        block: tuple[str, Tile] | None, scope: Scope | None, overrides: dict[str, Tile],
    ) -> Tile:  # fmt: skip
        """Values of 4 or 1 bits: several in a byte, the first in the lowest bits; a last axis starts a new byte."""
        per_byte = {"int4": 2, "sign": 8}[storage]
        last = axes[-1]
        position = overrides.get(last.name) or Tile(f"tl.arange(0, {e.lanes(last)})", (last,), "int32")
        cell = Tile(f"(({position.name}) // {per_byte})", position.axes, "int32")
        row = -(-(last.size or 1) // per_byte)
        stored = (*axes[:-1], Axis(last.name, row))
        limits = {**overrides, last.name: cell}
        byte = self.load(
            e, node, Place(base, stored, contiguous(stored)), scope, limits, "int32", None, block,
            once=not overrides,
        )  # fmt: skip
        shift = e.align(Tile(f"(({position.name}) % {per_byte})", position.axes, "int32"), byte.axes)
        if storage == "sign":
            name = e.let(f"sign_of_bit(({byte.name} >> {shift}) & 1)", node)
            return Tile(name, byte.axes, "fp32", {}, "bf16")
        name = e.let(f"(((({byte.name} >> ({shift} * 4)) & 15) ^ 8) - 8).to(tl.float32)", node)
        return Tile(name, byte.axes, "fp32", {axis.name: None for axis in byte.axes})

    def _scaled(
        self, e: Emitter, node: Node, axes: tuple[Axis, ...], name: str, tile: Tile, scope: Scope | None,
        overrides: dict[str, Tile],
    ) -> Tile:  # fmt: skip
        pointer = self.arguments.pointer("entry_scale", name)
        rest = axes[:-1]
        count = _count(rest)
        block = self._block_base(e, scope, f"HEADS * {count}", overrides)
        place = Place(f"{pointer} + head * {count}", rest, contiguous(rest))
        kept = {each: value for each, value in overrides.items() if each != axes[-1].name}
        scale = self.load(e, node, place, scope, kept, "fp32", None, block)
        value = e.cast(tile, "fp32")
        all_axes = (*value.axes, *(axis for axis in scale.axes if axis.name not in value.names))
        return Tile(e.let(f"{e.align(value, all_axes)} * {e.align(scale, all_axes)}", node), all_axes, "fp32",
                    {each: pad for each, pad in value.pads.items() if pad == 0})  # fmt: skip

    def _state(
        self, e: Emitter, node: Node, name: str, scope: Scope | None, overrides: dict[str, Tile]
    ) -> Tile:
        pointer = self.arguments.pointer("state", name)
        axes = tuple(axis for axis in node.type.axes if axis.size is not None)
        ragged = len(axes) < len(node.type.axes)
        count = _count(axes)
        base = f"{pointer} + (slot * HEADS + head) * {count}" + (" * STATE_BLOCKS" if ragged else "")
        block = None
        if ragged:
            lanes = overrides.get("block")
            if lanes is None:
                assert scope is not None
                lanes = Tile(scope.block, (Axis("block", None),), "int32")
            block = f"({lanes.name}).to(tl.int64) * {count}", lanes
        dtype = "bool" if node.type.dtype == "bool" else "fp32"
        return self.load(e, node, Place(base, axes, contiguous(axes)), scope, overrides, dtype, None, block)

    def read_buffer(self, buffer: Buffer) -> object:
        """How an evaluation reads a kept value instead of computing it."""

        def read(e: Emitter, number_: int, scope: Scope | None, overrides: dict[str, Tile]) -> Tile:
            node = e.function.nodes[number_]
            pointer = self.arguments.pointer("buffer", buffer.key)
            count = _count(buffer.axes)
            dtype = "bool" if node.type.dtype == "bool" else buffer.dtype
            if buffer.layout == "row":
                place = Place(f"{pointer} + row.to(tl.int64) * {count}", buffer.axes, contiguous(buffer.axes))
                return self.load(e, node, place, None, overrides, dtype, None)
            base = f"{pointer} + row.to(tl.int64) * CAPACITY * {count}"
            lanes = overrides.get("block")
            if lanes is None:
                assert scope is not None
                shown = scope.member if buffer.layout == "member" else scope.block
                lanes = Tile(shown, (Axis("block", None),), "int32")
            place = Place(base, buffer.axes, contiguous(buffer.axes))
            block = f"({lanes.name}) * {count}", lanes
            return self.load(e, node, place, scope, overrides, dtype, None, block)

        return read

    def read_window(self, buffer: Buffer) -> object:
        """A convolution or pooling along block: its operand, kept in memory, at the neighbours of every lane."""

        def read(e: Emitter, number_: int, scope: Scope | None, overrides: dict[str, Tile]) -> Tile:
            node = e.function.nodes[number_]
            assert scope is not None
            conv = node.op == "Conv1d"
            weights: Any = node.attr("weights")
            width = len(weights) if conv else int(node.attr("size"))  # type: ignore[arg-type]
            reader = self.read_buffer(buffer)
            total: Tile | None = None
            for place, offset in enumerate(neighbours(width)):
                at = Tile(f"({scope.member} + {offset})", (Axis("block", None),), "int32")
                part = reader(e, node.inputs[0], scope, {"block": at})  # type: ignore[operator]
                part = e.cast(part, "fp32")
                inside = e.spread(
                    f"(({at.name} >= 0) & ({at.name} < {scope.size}))", Axis("block", None), part.axes
                )
                outside = "0.0" if conv else number(float("-inf"), "fp32")
                value = e.let(f"tl.where({inside}, {part.name}, {outside})", node)
                value = f"{value} * {number(weights[place], 'fp32')}" if conv else value
                joined = value
                if total is not None:
                    joined = f"{total.name} + {value}" if conv else f"larger({total.name}, {value})"
                total = Tile(e.let(joined, node), part.axes, "fp32")
            assert total is not None
            return total

        return read

    def load(
        self, e: Emitter, node: Node, place: Place, scope: Scope | None, overrides: dict[str, Tile], dtype: str,
        exact: str | None, block: tuple[str, Tile] | None = None, *, once: bool = False,
    ) -> Tile:  # fmt: skip
        """Loads a tile; an override gives positions along an axis, -1 and beyond the axis reading 0.

        once: a kernel over all blocks reads it once, and need not keep it in the caches
        """
        axes, terms, masks = self.geometry(e, place, overrides, block)
        if block is not None and "block" in [axis.name for axis in block[1].axes]:
            own = block[1].axes == (Axis("block", None),) and scope is not None and "block" not in overrides
            if own:
                masks.append(e.spread(scope.valid, Axis("block", None), axes))  # type: ignore[union-attr]
        if "block" in overrides:
            ids = overrides["block"]
            shown = e.align(ids, axes)
            limit = scope.size if scope is not None else "finished"
            masks.append(f"({shown} >= 0) & ({shown} < {limit})")
        for axis in axes:
            if (
                axis.size is not None
                and e.padded(axis)
                and not any(axis in each.axes for each in overrides.values())
            ):
                masks.append(f"({e.index(axis, axes, scope)} < {axis.size})")
        address = f"{place.base} + " + " + ".join(terms) if terms else place.base
        nothing = "0.0" if dtype == "fp32" else "0"
        guard = f", mask={' & '.join(masks)}, other={nothing}" if masks else ""
        if once and e.early is not None:
            guard += ', eviction_policy="evict_first"'
        value = f"tl.load({address}{guard})"
        if dtype == "fp32":
            value += ".to(tl.float32)"
        elif dtype == "bool":
            value = f"{value} != 0"
        else:
            value += ".to(tl.int32)"
        name = e.let(value, node)
        pads = {axis.name: 0.0 for axis in axes} if not overrides else {}
        return Tile(name, axes, dtype, pads, exact)

    def geometry(
        self, e: Emitter, place: Place, overrides: dict[str, Tile], block: tuple[str, Tile] | None
    ) -> tuple[tuple[Axis, ...], list[str], list[str]]:
        """Axes of the loaded tile, the terms of its offset, and the masks that overrides need."""
        axes: list[Axis] = []

        def add(found: Sequence[Axis]) -> None:
            axes.extend(axis for axis in found if axis.name not in [each.name for each in axes])

        if block is not None:
            add(block[1].axes)
        for axis in place.axes:
            add(overrides[axis.name].axes if axis.name in overrides else (axis,))
        terms, masks = [], []
        if block is not None:
            terms.append(e.align(Tile(f"({block[0]})", block[1].axes, "int32"), axes))
        for axis, stride in zip(place.axes, place.strides, strict=True):
            index = overrides.get(axis.name)
            if index is None:
                shown = e.spread(f"tl.arange(0, {e.lanes(axis)})", axis, axes)
            else:
                shown = e.align(index, axes)
                masks.append(f"({shown} >= 0) & ({shown} < {axis.size})")
            terms.append(shown if stride == "1" else f"{shown} * {stride}")
        return tuple(axes), terms, masks


def _count(axes: Sequence[Axis]) -> int:
    count = 1
    for axis in axes:
        count *= axis.size or 1
    return count


def row_elements(axes: Sequence[Axis], storage: str) -> int:
    """Stored elements of one (block, KV head) of an entry: bytes where several values share one."""
    if storage not in ("int4", "sign"):
        return _count(axes)
    per_byte = {"int4": 2, "sign": 8}[storage]
    last = axes[-1].size if axes else 1
    return _count(axes[:-1]) * -(-(last or 1) // per_byte)
