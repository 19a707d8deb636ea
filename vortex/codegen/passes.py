"""Writes the body of map and row kernels: what each pass evaluates, and how its outputs reach memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from vortex.codegen.fuse import row_kind
from vortex.codegen.lowering.matmul import CONTRACTED, contracted_with, dot_columns, operands_of
from vortex.codegen.lowering.reduce import (
    ARGUMENT,
    JOIN,
    NEUTRAL,
    best_in_tile,
    element_count,
    finished,
    prepared,
    reduced_axes,
    shrink,
)
from vortex.codegen.memory import Arguments, Memory, offsets
from vortex.codegen.steps import Buffer, Kernel, Output, Pass, Plan
from vortex.codegen.tile import TRITON, Emitter, Scope, Tile, number
from vortex.dsl.axes import Axis
from vortex.dsl.ir import Node, Program

BLOCK = Axis("block", None)


@dataclass
class Sweep:
    """The code of one pass, for a template to lay out.

    preamble  once a row; before  accumulators; body  for each tile of blocks; after  what follows the loop
    early     of a map kernel: what needs nothing of the kernel before it
    """

    subset: int | None
    rows_only: bool
    preamble: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    members: str = ""
    counts: str = ""
    width: str = ""

    @property
    def lines(self) -> list[str]:
        return [*self.early, *self.preamble, *self.before, *self.body, *self.after]


@dataclass
class Written:
    """A kernel ready to be rendered."""

    kind: str
    sweeps: tuple[Sweep, ...]
    arguments: Arguments
    uses_state: bool
    largest_tile: int


@dataclass
class Writer:
    """Writes the kernels of one plan."""

    program: Program
    plan: Plan
    entry_dtype: str
    kv_dtype: str
    names: int = 0

    def write(self, kernel: Kernel, tile: int) -> Written:
        arguments = Arguments()
        memory = Memory(
            self.program, arguments, self.plan.buffers, "indexer", self.entry_dtype, self.kv_dtype
        )
        self.names = 0
        sweeps = tuple(self._sweep(each, memory, tile, kernel.kind == "map") for each in kernel.passes)
        uses_state = any(each.kind == "state" for each in arguments.ordered())
        return Written(kernel.kind, sweeps, arguments, uses_state, tile)

    def _emitter(self, memory: Memory, sweep: Pass, tile: int) -> Emitter:
        e = Emitter(self.program.indexer, self.program.file, tile)
        e.leaf = memory.read_leaf
        written = {f"{output.how}_{output.node}" for output in sweep.outputs}
        for buffer in self.plan.buffers:
            if buffer.how in ("scores", "mask") or buffer.key in written:
                continue
            e.materialised[buffer.node] = memory.read_buffer(buffer)  # type: ignore[assignment]
        for number_, node in enumerate(self.program.indexer.nodes):
            kind = row_kind(self.program.indexer, number_)
            if kind == "window":
                buffer = self.plan.kept(node.inputs[0])
                e.materialised[number_] = memory.read_window(buffer)  # type: ignore[assignment]
        return e

    def _sweep(self, sweep: Pass, memory: Memory, tile: int, parallel: bool) -> Sweep:
        e = self._emitter(memory, sweep, tile)
        # Sweeps of one kernel share its variables, and a loop's variables keep their type: no name comes twice.
        e.counter = self.names
        self._widen(e, sweep)
        written = Sweep(sweep.domain, sweep.domain == -1)
        if sweep.domain is not None and sweep.domain >= 0:
            key = str(sweep.domain)
            written.members = memory.arguments.pointer("ids", key)
            written.counts = memory.arguments.pointer("counts", key)
            written.width = memory.arguments.pointer("width", key)
        size = "members" if written.members else "finished"
        if parallel and sweep.domain is None:
            e.early = written.early
        scope = Scope(sweep.domain, "block", "member", "valid", size)
        stores: list[str] = []
        for output in sweep.outputs:
            if output.how in ("reduce", "scan"):
                self._accumulate(e, memory, output, scope, written, stores)
            else:
                self._store(e, memory, output, scope, stores, written.rows_only)
        self.names = e.counter
        written.preamble += e.preamble
        written.body += [*e.body, *stores] if not written.rows_only else []
        if written.rows_only:
            written.after += [*e.body, *stores]
        return written

    def _widen(self, e: Emitter, sweep: Pass) -> None:
        """Axes that tensor cores need 16 lanes of, in all values of this sweep."""
        seen: set[int] = set()
        wanted = [output.node for output in sweep.outputs]
        while wanted:
            each = wanted.pop()
            if each in seen:
                continue
            seen.add(each)
            name = dot_columns(e, each)
            if name is not None:
                e.wide.add(name)
            if each not in e.materialised:
                wanted += e.function.nodes[each].inputs
        for each in seen:
            e.wide |= contracted_with(e, each)

    def write_row(self, scores: int, tile: int) -> tuple[Written, str]:
        """The whole indexer up to its scores, over a tile that holds the row; with the variable of the scores."""
        arguments = Arguments()
        memory = Memory(self.program, arguments, (), "indexer", self.entry_dtype, self.kv_dtype)
        e = Emitter(self.program.indexer, self.program.file, tile)
        e.leaf = memory.read_leaf
        self._widen(e, Pass(None, (Output(scores, "scores"),)))
        written = Sweep(None, False)
        e.early = written.early
        scope = Scope(None, "block", "member", "valid", "finished", whole=True)
        value = e.evaluate(scores, scope)
        value = e.cast(e.cast(value, "int32") if value.dtype == "bool" else value, "fp32")
        shown = e.let(e.full(value, (BLOCK,)))
        written.preamble, written.body = e.preamble, e.body
        return Written("fused", (written,), arguments, False, tile), shown

    # Outputs

    def _buffer_address(self, memory: Memory, buffer: Buffer, e: Emitter, axes: tuple[Axis, ...]) -> str:
        pointer = memory.arguments.pointer("buffer", buffer.key)
        count = max(1, math.prod(axis.size or 1 for axis in buffer.axes))
        terms = [
            f"{pointer} + row.to(tl.int64) * {count}" + ("" if buffer.layout == "row" else " * CAPACITY")
        ]
        if buffer.layout != "row":
            lane = "member" if buffer.layout == "member" else "block"
            terms.append(f"{e.spread(lane, BLOCK, axes)} * {count}")
        return " + ".join([*terms, *offsets(e, buffer.axes, axes)])

    def _store(
        self, e: Emitter, memory: Memory, output: Output, scope: Scope, stores: list[str], rows_only: bool
    ) -> None:
        node = e.function.nodes[output.node]
        if output.how == "state":
            self._store_state(e, memory, output, scope, stores)
            return
        if output.how == "fill":
            buffer = self.plan.buffer(f"{output.name}_{output.node}")
            axes = (BLOCK, *buffer.axes)
            value = Tile(number(output.fill, buffer.dtype), (), buffer.dtype)
        elif output.how == "scatter" and node.op != "Scatter":
            buffer = self.plan.buffer(f"scatter_{output.node}")
            axes, value = (BLOCK,), Tile("1.0", (), "fp32")
        else:
            buffer = self.plan.buffer(f"{output.how}_{output.node}")
            source = node.inputs[0] if output.how == "scatter" else output.node
            dtype = "fp32" if output.how in ("scores", "mask") else buffer.dtype
            value = e.evaluate(source, scope)
            value = e.cast(e.cast(value, "int32") if value.dtype == "bool" else value, dtype)
            axes = value.axes if "block" in value.names else (BLOCK, *value.axes)
        if buffer.layout == "row":
            axes = value.axes
        address = self._buffer_address(memory, buffer, e, axes)
        mask = e.mask(axes, scope)
        stores.append(f"tl.store({address}, {e.full(value, axes)}{f', mask={mask}' if mask else ''})")

    def _store_state(
        self, e: Emitter, memory: Memory, output: Output, scope: Scope, stores: list[str]
    ) -> None:
        state = self.program.state(output.name)
        pointer = memory.arguments.pointer("state", output.name)
        value = e.evaluate(output.node, scope)
        value = e.cast(e.cast(value, "int32") if value.dtype == "bool" else value, "fp32")
        own = tuple(axis for axis in state.axes if axis.size is not None)
        ragged = len(own) < len(state.axes)
        count = max(1, math.prod(axis.size or 1 for axis in own))
        axes = tuple(state.axes)
        terms = [f"{pointer} + (slot * HEADS + head) * {count}" + (" * STATE_BLOCKS" if ragged else "")]
        if ragged:
            terms.append(f"{e.spread('block', BLOCK, axes)}.to(tl.int64) * {count}")
        address = " + ".join([*terms, *offsets(e, own, axes)])
        mask = e.mask(axes, scope if ragged else None)
        stores.append(f"tl.store({address}, {e.full(value, axes)}{f', mask={mask}' if mask else ''})")

    # Reductions over the row

    def _accumulate(
        self, e: Emitter, memory: Memory, output: Output, scope: Scope, written: Sweep, stores: list[str]
    ) -> None:
        node = e.function.nodes[output.node]
        buffer = self.plan.buffer(f"{output.how}_{output.node}")
        if output.how == "scan":
            self._scan(e, memory, node, buffer, scope, written, stores)
            return
        if node.op in ARGUMENT:
            result = self._argument(e, node, scope, written)
        else:
            result = self._reduction(e, node, output.node, scope, written)
        address = self._buffer_address(memory, buffer, e, result.axes)
        mask = e.mask(result.axes, None)
        written.after.append(f"tl.store({address}, {result.name}{f', mask={mask}' if mask else ''})")

    def _reduction(self, e: Emitter, node: Node, number_: int, scope: Scope, written: Sweep) -> Tile:
        gone: tuple[Axis, ...] = ()
        if node.op == "GeMM":
            part = self._product(e, node, number_, scope)
        else:
            operand = e.evaluate(node.inputs[0], scope)
            axes = reduced_axes(node)
            gone = tuple(operand.axis(name) for name in axes)
            part = shrink(e, node, prepared(e, node, operand, axes, scope), axes)
        total = e.fresh("total")
        shape = ", ".join(e.lanes(axis) for axis in part.axes)
        neutral = number(NEUTRAL[node.op], part.dtype)
        start = f"tl.full(({shape}{',' if len(part.axes) == 1 else ''}), {neutral}, {TRITON[part.dtype]})"
        written.before.append(f"{total} = {start}")
        e.line(f"{total} = {JOIN[node.op].format(total, part.name)}", node)
        return self._after(e, written, lambda: finished(
            e, node, Tile(total, part.axes, part.dtype, part.pads), element_count(gone, scope)))  # fmt: skip

    def _after(self, e: Emitter, written: Sweep, make: object) -> Tile:
        """Code that a function writes, moved behind the loop."""
        mark = len(e.body)
        result = make()  # type: ignore[operator]
        written.after += e.body[mark:]
        del e.body[mark:]
        return result

    def _product(self, e: Emitter, node: Node, number_: int, scope: Scope) -> Tile:
        """What one tile of blocks adds to a product that contracts block."""
        a, b, _ = operands_of(e, number_, scope)
        block = Axis(CONTRACTED, None)
        rest = [axis for axis in a.axes if axis.name != CONTRACTED]
        rest += [axis for axis in b.axes if axis.name != CONTRACTED and axis.name not in a.names]
        axes = (*rest, block)
        product = f"{e.align(a, axes)} * {e.align(b, axes)}"
        valid = e.spread(scope.valid, block, axes)
        return Tile(
            e.let(f"tl.sum(tl.where({valid}, {product}, 0.0), {len(rest)})", node), tuple(rest), "fp32"
        )

    def _argument(self, e: Emitter, node: Node, scope: Scope, written: Sweep) -> Tile:
        operand = e.evaluate(node.inputs[0], scope)
        best = best_in_tile(e, node, operand, scope)
        value, place = e.fresh("best"), e.fresh("place")
        shape = f"({', '.join(e.lanes(axis) for axis in best.value.axes)}{',' if len(best.value.axes) == 1 else ''})"
        worst = number(-math.inf if node.op == "ArgMax" else math.inf, "fp32")
        written.before.append(f"{value} = tl.full({shape}, {worst}, tl.float32)")
        written.before.append(f"{place} = tl.full({shape}, -1, tl.int32)")
        sign = ">" if node.op == "ArgMax" else "<"
        better = e.let(f"({best.value.name} {sign} {value}) | ({place} < 0)", node)
        e.line(f"{place} = tl.where({better}, {best.position.name}, {place})", node)
        e.line(f"{value} = tl.where({better}, {best.value.name}, {value})", node)
        return Tile(place, best.value.axes, "int32")

    def _scan(
        self,
        e: Emitter,
        memory: Memory,
        node: Node,
        buffer: Buffer,
        scope: Scope,
        written: Sweep,
        stores: list[str],
    ) -> None:
        operand = e.cast(e.evaluate(node.inputs[0], scope), "fp32")
        operand = e.held(operand, ["block"], 0.0, scope)
        at = operand.names.index("block")
        rest = tuple(axis for axis in operand.axes if axis.name != "block")
        carry = e.fresh("carry")
        shape = f"({', '.join(e.lanes(axis) for axis in rest)}{',' if len(rest) == 1 else ''})"
        written.before.append(f"{carry} = tl.full({shape}, 0.0, tl.float32)")
        shown = e.align(Tile(carry, rest, "fp32"), operand.axes)
        sums = e.let(f"tl.cumsum({operand.name}, {at}) + {shown}", node)
        e.line(f"{carry} = {carry} + tl.sum({operand.name}, {at})", node)
        address = self._buffer_address(memory, buffer, e, operand.axes)
        stores.append(f"tl.store({address}, {sums}, mask={e.mask(operand.axes, scope)})")
