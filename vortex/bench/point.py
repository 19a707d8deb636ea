"""One point of a benchmark: a flow at a batch and a context, checked against the reference, then timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from vortex.attention.crossover import crossover
from vortex.attention.dense import dense_kernels
from vortex.attention.measure import Timing
from vortex.attention.provider import Features, StepShape
from vortex.attention.reference import attend
from vortex.attention.rig import Rig
from vortex.attention.step import DecodeStep, StepOptions, fixed_counts
from vortex.attention.triton_split import PlannedTriton, TritonProvider, schedules
from vortex.bench.layer import LayerBytes, layer_bytes
from vortex.codegen.compiled import CompiledFlow, Options
from vortex.codegen.storage import torch_dtype
from vortex.dsl.ir import Program
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.pool import KVPool
from vortex.vtensor.reference import ReferenceRunner
from vortex.vtensor.selection import Selection

MEMORY = 48 * 2**30
LEAST_AGREEMENT = 0.98
"""Part of the blocks that kernels and reference have in common; scores on the edge differ by rounding."""


class WrongResult(ArithmeticError):
    """Kernels that do not compute what the reference computes: nothing is timed."""


@dataclass
class Bench:
    """Flows on one device. kv, entries: storage dtypes; bandwidth: bytes/s of the copy measured in this run.

    longest  tokens that `dense_below` is measured for: the longest context of the sweep
    """

    device: torch.device
    bandwidth: float
    longest: int
    kv: str = "bf16"
    entries: str | None = None
    page_size: int | None = None
    say: Callable[[str], None] = print
    denses: dict[Any, dict[str, Timing]] = field(default_factory=dict)
    crossings: dict[Any, int] = field(default_factory=dict)

    def measure(self, program: Program, batch: int, context: int) -> dict[str, Any]:
        """All figures of a point; times in us of one layer. Raises WrongResult, and what a kernel raises."""
        flow = self._flow(program)
        shape = self.shape(program, batch, context)
        read = layer_bytes(program, batch, context, self.kv, self.entries)
        row: dict[str, Any] = {
            "flow": program.name, "batch": batch, "context": context, "budget": program.policy.budget,
            "attended": read.attended, "blocks": read.blocks, "kv": self.kv, "entries": self.entries or self.kv,
            "bytes": {"entries": read.entries, "kv": read.kv, "step": read.step, "dense": read.dense},
            "bound_us": {"step": self._bound(read.step), "dense": self._bound(read.dense)},
            "speedup_bound": read.speedup,
        }  # fmt: skip
        rig = Rig(flow, shape, context, MEMORY)
        step = rig.step(StepOptions(dense_below=0, max_tokens=context, say=self.say))
        row["layers_in_memory"] = len(rig.pools)
        if not all(step.whole):
            row["correct"] = self._check(rig, step)
            row |= self._sparse(rig, step, read)
        row |= self._dense(rig, row.get("step_us"))
        row["auto"] = self._auto(rig, program, read, row["dense_us"][row["fastest_dense"]]["median"])
        rig.forget()
        return row

    def _flow(self, program: Program) -> CompiledFlow:
        return CompiledFlow(program, Options(self.kv, self.entries))

    def shape(self, program: Program, batch: int, context: int) -> StepShape:
        size, block = program.shape, program.policy.block_size
        types = torch_dtype(self.kv)
        q_dtype = torch.bfloat16 if types.itemsize == 1 else types
        return StepShape(
            batch, Heads(size.query_heads, size.kv_heads, size.head_dim), block, self.page_size or max(block, 16), 1,
            -(-context // block), q_dtype, types, self.device, fixed_counts(program),
        )  # fmt: skip

    def _bound(self, count: int) -> float:
        return count / self.bandwidth * 1e6

    def compile(self, program: Program, batch: int, context: int, pages: int) -> None:
        """Runs each of a point's own kernels once, over requests of few pages."""
        flow, shape = self._flow(program), self.shape(program, batch, context)
        rig = Rig(flow, shape, pages * shape.page_size)
        for label in dense_kernels(rig.shape, Features()):
            if label.startswith("triton"):
                rig.dense(label).run(rig.q, rig.pools[0], rig.batch, rig.out)
        step = rig.step(StepOptions(TritonProvider(), dense_below=0, max_tokens=context, say=lambda _: None))
        # What a step launches first does not overlap: its second run compiles the others.
        for _ in range(2):
            step.run_layer(0, rig.q, rig.out)
        step.count()
        processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        for asked in step.plans:
            for schedule in schedules(asked, processors):
                step.plans[asked] = TritonProvider(schedule).plan(asked, Features())
                step.run_layer(0, rig.q, rig.out)

    # The parts of a point

    def _check(self, rig: Rig, step: DecodeStep) -> dict[str, float]:
        """The first request of a layer beside the reference: blocks in common, error of attention, mass kept."""
        layer = step.whole.index(False)
        selection = step.select(layer, rig.q)
        step.attend(layer, rig.q, selection, rig.out)
        out, lse = rig.out[:1].double(), step.lse[:1].double()
        first = Selection(selection.ids[:1], selection.counts[:1], selection.dense[:1], selection.lists_dense)
        batch, pool, q = first_request(rig, layer)
        scale = rig.scale
        exact, _ = attend(q, pool, first, batch, scale, compute=torch.float64)
        plain = attend(q, pool, first, batch, scale, compute=q.dtype)[0].double()
        error = float((out - exact).abs().max() / (plain - exact).abs().max().clamp(min=1e-12))
        every = Selection(first.ids, first.counts, torch.ones_like(first.dense), lists_dense=False)
        mass = float((lse - attend(q, pool, every, batch, scale, compute=torch.float64)[1]).exp().mean())
        agreement = self._agreement(rig, layer, first, batch, pool, q)
        if not error <= 2 or not agreement >= LEAST_AGREEMENT:
            raise WrongResult(
                f"error {error:.3g} times that of plain torch in {q.dtype}, {agreement:.1%} of the blocks in common"
            )
        return {"error": error, "agreement": agreement, "mass_kept": mass}

    def _agreement(
        self, rig: Rig, layer: int, ours: Selection, batch: Batch, pool: KVPool, q: torch.Tensor
    ) -> float:
        assert rig.flow is not None
        stored = torch_dtype(rig.flow.built.options.entry_dtype)
        runner = ReferenceRunner(rig.flow.program, weights=rig.flow.kernels.weights, entries=stored)
        runner.dense_below = 0
        blocks = batch.page_table.shape[1] * batch.blocks_per_page
        storage = runner.allocate(layers=layer + 1, pool_blocks=blocks, slots=1, max_blocks=blocks, heads=batch.heads,
                                  device=self.device)  # fmt: skip
        runner.reset_slot(storage, 0)
        runner.summarise(storage, layer, pool, torch.arange(batch.finished_blocks(0), device=self.device))
        theirs = runner.select(storage, layer, q, pool, batch)
        common = total = 0
        for head in range(batch.heads.kv):
            listed = [each.ids[0, head, : int(each.counts[0, head])].tolist() for each in (ours, theirs)]
            common += len(set(listed[0]) & set(listed[1]))
            total += max(map(len, listed))
        return common / max(total, 1)

    def _sparse(self, rig: Rig, step: DecodeStep, read: LayerBytes) -> dict[str, Any]:
        """Times of the whole step of a layer and of its kernels, and what they achieve of the copy's bandwidth."""
        assert rig.flow is not None
        parts: dict[str, dict[str, float]] = {}
        sparse = [layer for layer, whole in enumerate(step.whole) if not whole]
        names = rig.flow.parts(rig.storage, rig.batch)
        scored = [name for name in names if not name.startswith("select")]
        for name, number in names.items():
            size = read.entries if scored == [name] else 0
            timed = rig.time(partial(_part, rig, number), read.entries, sparse)
            parts[name] = self._timed(timed, size)
        selection = step.select(sparse[0], rig.q)
        timed = rig.time(lambda layer: step.attend(layer, rig.q, selection, rig.out), read.kv, sparse)
        parts["attend"] = self._timed(timed, read.kv)
        (planned,) = step.plans.values()
        inner = getattr(planned, "planned", planned)
        if isinstance(inner, PlannedTriton) and inner.schedule.splits > 1:
            timed = rig.time(lambda _: inner.join(1.0, rig.out, step.lse, step.lse), 0)
            parts["of which merge"] = self._timed(timed, 0)
        once = {"plan, summarise": lambda _: step.plan(), "count": lambda _: step.count()}
        for name, start in once.items():
            parts[f"once a step: {name}"] = self._timed(rig.time(start, 0), 0)
        whole = rig.time_step(step, read.step)
        return {
            "attention": planned.reason,
            "parts_us": parts,
            "step_us": self._timed(whole, read.step),
            "over_bound": whole.median / self._bound(read.step),
        }

    def _timed(self, timing: Timing, size: int) -> dict[str, float]:
        found = {"median": timing.median, "low": timing.low, "high": timing.high}
        if size:
            found["bytes"] = size
            found["bytes_per_s"] = size / timing.median * 1e6
        return found

    def _dense(self, rig: Rig, step: dict[str, float] | None) -> dict[str, Any]:
        key = (rig.shape.requests, rig.length, rig.shape.heads, rig.shape.block_size)
        if key not in self.denses:
            times = {}
            for label in dense_kernels(rig.shape, Features()):
                times[label] = rig.time_dense(label)
            self.denses[key] = times
        times = self.denses[key]
        size = layer_bytes_dense(rig)
        fastest = min(times, key=lambda label: times[label].median)
        found: dict[str, Any] = {
            "dense_us": {label: self._timed(timing, size) for label, timing in times.items()},
            "fastest_dense": fastest,
        }
        if step is not None:
            found["speedup"] = times[fastest].median / step["median"]
        return found

    def _auto(self, rig: Rig, program: Program, read: LayerBytes, dense: float) -> dict[str, Any]:
        """The step that `dense_below = auto` makes, against the fastest dense kernel of this run."""
        assert rig.flow is not None
        key = (program, rig.shape.requests)
        if key not in self.crossings:
            block = program.policy.block_size
            shape = self.shape(program, rig.shape.requests, self.longest)
            found = crossover(rig.flow, shape, self.longest // block * block)
            self.say(
                f"{program.name}, batch {rig.shape.requests}: dense_below = {found.dense_below}, {found.reason}"
            )
            self.crossings[key] = found.dense_below
        below = self.crossings[key]
        options = StepOptions(dense_below=below, dense_kernel="auto", max_tokens=rig.length, say=self.say)
        step = rig.step(options)
        timing = rig.time_step(step, read.dense if all(step.whole) else read.step)
        return {
            "dense_below": below, "chosen": step.dense_label if all(step.whole) else "sparse",
            "us": self._timed(timing, 0), "over_dense": timing.median / dense,
        }  # fmt: skip


def _part(rig: Rig, number: int, layer: int) -> None:
    assert rig.flow is not None
    rig.flow.run_step(number, rig.storage, layer, rig.q, rig.pools[layer], rig.batch)


def layer_bytes_dense(rig: Rig) -> int:
    shape = rig.shape
    return 2 * shape.requests * shape.heads.kv * rig.length * shape.heads.dim * shape.kv_dtype.itemsize


def first_request(rig: Rig, layer: int) -> tuple[Batch, KVPool, torch.Tensor]:
    """The first request of a layer alone, its pages copied in order."""
    batch, pool = rig.batch, rig.pools[layer]
    pages = batch.page_table.shape[1]
    position = torch.arange(pages * batch.page_size, device=rig.q.device)
    slots = (
        batch.page_table[0].long()[position // batch.page_size] * batch.page_size + position % batch.page_size
    )
    own = KVPool({name: each[slots] for name, each in pool.tensors.items()}, pool.page_size, pool.scales)
    table = torch.arange(pages, dtype=torch.int32, device=rig.q.device)[None]
    slot = torch.zeros(1, dtype=torch.int32, device=rig.q.device)
    return (
        Batch(batch.lengths[:1], table, slot, batch.page_size, batch.block_size, batch.heads),
        own,
        rig.q[:1],
    )


__all__ = ["Bench", "WrongResult"]
