"""Our kernel: split-KV attention over block lists, with the counts on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from vortex.attention.provider import Features, StepShape, check_call, require
from vortex.attention.source import load, power_of_two
from vortex.vtensor.batch import Batch
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection

LOG2E = 1.4426950408889634
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)

MOST_SPLITS = 32
"""Splits of a row, which one program of the merge holds."""


@dataclass(frozen=True)
class Schedule:
    """How the work is cut; every choice is right, one is fastest.

    splits  programs of a row
    tile    tokens that a program handles at once; 16 at least
    ahead   ids and pages are read tiles early by hand, not by the compiler's pipeline
    swap    keys are the rows of the products (64-row tensor core instructions), not the padded queries
    pdl     programmatic dependent launch: a kernel starts while the one before it ends (sm_90)
    """

    splits: int
    tile: int = 64
    stages: int = 2
    warps: int = 4
    ahead: bool = False
    swap: bool = False
    pdl: bool = False

    def __str__(self) -> str:
        extras = "".join(f", {name}" for name in ("ahead", "swap", "pdl") if getattr(self, name))
        return f"{self.splits} splits, tiles of {self.tile} tokens, {self.stages} stages, {self.warps} warps{extras}"


def resident(schedule: Schedule, shape: StepShape) -> int:
    """Programs that the shared memory (220 KB) and registers (168 a thread) of a multiprocessor hold."""
    tile = schedule.tile * power_of_two(shape.heads.dim) * shape.kv_dtype.itemsize
    shared = max(schedule.stages - 1, 1) * 2 * tile + 6 * 1024
    return max(1, min(220 * 1024 // shared, 12 // schedule.warps))


def fill(schedule: Schedule, shape: StepShape, processors: int, most: int | None = None) -> Schedule:
    """As many splits as fit in one wave, of 64 tokens or more.

    most: programs that share a multiprocessor, where fewer than fit are faster.
    """
    rows = max(1, shape.requests * shape.heads.kv)
    longest = shape.width if shape.lists_dense else max(shape.width, shape.max_blocks)
    pieces = -(-longest * shape.block_size // max(64, schedule.tile))
    programs = min(resident(schedule, shape), most or 12)
    wave = processors * programs // rows
    return replace(schedule, splits=max(1, min(wave, pieces, MOST_SPLITS)))


def _wide(shape: StepShape) -> bool:
    """Whether a token's key takes more than the 256 bytes that the schedules were found with."""
    return shape.heads.dim > 128 or shape.kv_dtype.itemsize > 2


def default_schedule(shape: StepShape, processors: int) -> Schedule:
    """What was fastest on an H200 (benchmarks/attention.py): one warp a program and one block a tile, three stages,
    eight programs a multiprocessor, no barrier, launches that overlap."""
    if _few_long_rows(shape, processors):
        return _swapped(shape, processors)
    if shape.block_size >= 16:
        return _one_block(shape, processors)
    tile = 16 if _wide(shape) else 64
    return fill(Schedule(splits=1, tile=tile, stages=2, warps=4, ahead=True, pdl=True), shape, processors)


def _few_long_rows(shape: StepShape, processors: int) -> bool:
    """Whether rows walk all of their pages, and are too few for one-warp programs to fill half of the device
    (benchmarks/results/step.json: 56.6 us against 38.0 for one request of 32,768 tokens)."""
    programs = shape.requests * shape.heads.kv * MOST_SPLITS
    return shape.width == 1 and not shape.lists_dense and 2 * programs <= 8 * processors


def _one_block(shape: StepShape, processors: int) -> Schedule:
    warps = 4 if _wide(shape) else 1
    schedule = Schedule(splits=1, tile=16, stages=3, warps=warps, ahead=True, pdl=True)
    return fill(schedule, shape, processors, most=8)


def _swapped(shape: StepShape, processors: int) -> Schedule:
    tile = 16 if _wide(shape) else 64
    schedule = Schedule(splits=1, tile=tile, stages=3, swap=tile == 64, ahead=True, pdl=True)
    return fill(schedule, shape, processors, most=2)


def schedules(shape: StepShape, processors: int) -> list[Schedule]:
    """What is worth measuring for a shape, the default first."""
    tile = 16 if _wide(shape) else 64
    plain = Schedule(splits=1, tile=tile, stages=3, ahead=True, pdl=True)
    others = [_swapped(shape, processors), fill(plain, shape, processors)]
    if shape.block_size >= 16:
        others.append(_one_block(shape, processors))
    return list(dict.fromkeys([default_schedule(shape, processors), *others]))


def dense_schedules(shape: StepShape, processors: int) -> list[Schedule]:
    """What is worth measuring where every row walks its page table."""
    return schedules(replace(shape, width=1, lists_dense=False), processors)


@dataclass(frozen=True)
class TritonProvider:
    """schedule: fixes what `default_schedule` would choose."""

    schedule: Schedule | None = None
    name: str = "triton"
    features: frozenset[str] = frozenset({"window", "soft_cap", "sinks"})

    def refusal(self, shape: StepShape, features: Features) -> str | None:
        if shape.q_dtype not in FLOATS:
            return f"queries of {shape.q_dtype}; fp16, bf16 or fp32"
        if shape.kv_dtype not in (shape.q_dtype, *EIGHT_BITS):
            return (
                f"a pool of {shape.kv_dtype} with queries of {shape.q_dtype}; the same type, or 8-bit floats"
            )
        if shape.heads.dim < 16:
            return f"a head dim of {shape.heads.dim}; 16 at least"
        return None

    def plan(self, shape: StepShape, features: Features, layer: int | None = None) -> PlannedTriton:
        require(self, shape, features, layer)
        on_gpu = shape.device.type == "cuda"
        processors = torch.cuda.get_device_properties(shape.device).multi_processor_count if on_gpu else 1
        schedule = self.schedule or default_schedule(shape, processors)
        if schedule.pdl and not (on_gpu and torch.cuda.get_device_capability(shape.device) >= (9, 0)):
            schedule = replace(schedule, pdl=False)
        return PlannedTriton(shape, features, schedule)


def kernels(shape: StepShape, features: Features, schedule: Schedule) -> ModuleType:
    """The rendered module for a shape; its file holds nothing that the shape does not need."""
    return load(
        "attend.py.jinja",
        walks_dense=not shape.lists_dense,
        window=features.window is not None,
        soft_cap=features.soft_cap > 0,
        sinks=features.sinks,
        ahead=schedule.ahead,
        in_block=schedule.tile <= shape.block_size,
        swap=schedule.swap,
        pdl=schedule.pdl,
        merge=schedule.splits > 1,
    )


@dataclass
class PlannedTriton:
    """Owns the partial results of the splits; one at a time may run on it (the layers of a model do)."""

    shape: StepShape
    features: Features
    schedule: Schedule
    parts: Tensor = field(init=False)
    peaks: Tensor = field(init=False)
    totals: Tensor = field(init=False)
    module: ModuleType = field(init=False)

    def __post_init__(self) -> None:
        shape, splits = self.shape, self.schedule.splits
        rows = (shape.requests, shape.heads.query, splits if splits > 1 else 0)
        self.parts = torch.empty(*rows, shape.heads.dim, dtype=torch.float32, device=shape.device)
        self.peaks, self.totals = torch.empty(2, *rows, dtype=torch.float32, device=shape.device)
        self.module = kernels(shape, self.features, self.schedule)

    @property
    def reason(self) -> str:
        return f"split-KV kernel: {self.schedule}"

    def update(self, counts: Sequence[int]) -> None:
        pass

    def run(self, q: Tensor, pool: KVPool, selection: Selection, batch: Batch, scale: float,
            out: Tensor | None = None, lse: Tensor | None = None,
            sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
        check_call(self.shape, self.features, q, pool, selection, batch, sinks)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if lse is None else lse
        if self.shape.requests:
            self._launch(q, pool, selection, batch, scale, out, lse, sinks)
        return out, lse

    def constants(self) -> dict[str, int]:
        """Compile-time constants of both kernels."""
        heads, splits = self.shape.heads, self.schedule.splits
        return {
            "KV_HEADS": heads.kv, "GROUP": heads.group, "DIM": heads.dim, "DIM_PAD": power_of_two(heads.dim),
            "SPLITS": splits,
        }  # fmt: skip

    def _launch(self, q: Tensor, pool: KVPool, selection: Selection, batch: Batch, scale: float, out: Tensor,
                lse: Tensor, sinks: Tensor | None) -> None:  # fmt: skip
        heads, schedule, features = self.shape.heads, self.schedule, self.features
        k, v = pool.tensors["k"], pool.tensors["v"]
        written = (out.stride(0), out.stride(1), lse.stride(0), lse.stride(1))
        asked = [features.soft_cap] * (features.soft_cap > 0)
        asked += [features.window] if features.window is not None else []
        sinks = lse if sinks is None else sinks
        launch: dict[str, Any] = {"launch_pdl": True} if schedule.pdl else {}
        self.module.attend[schedule.splits, heads.kv, batch.requests](
            q, k, v, selection.ids, selection.counts, selection.dense, batch.lengths, batch.page_table, sinks,
            self.parts, self.peaks, self.totals, out, lse,
            scale * pool.scale("k") * (1.0 if features.soft_cap else LOG2E), pool.scale("v"), *asked,
            self.shape.width, q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            batch.page_table.stride(0), *written,
            GROUP_PAD=max(16, power_of_two(heads.group)), BLOCK=self.shape.block_size, PAGE=batch.page_size,
            TILE=schedule.tile, **self.constants(), num_stages=schedule.stages,
            num_warps=schedule.warps, **launch,
        )  # fmt: skip
        self.join(pool.scale("v"), out, lse, sinks)

    def join(self, v_scale: float, out: Tensor, lse: Tensor, sinks: Tensor) -> None:
        """The second kernel, where there is one: joins the splits of each query head."""
        schedule, shape = self.schedule, self.shape
        if schedule.splits == 1:
            return
        splits, dim = power_of_two(schedule.splits), power_of_two(shape.heads.dim)
        launch: dict[str, Any] = {"launch_pdl": True} if schedule.pdl else {}
        self.module.merge[shape.heads.query, shape.requests](
            self.parts, self.peaks, self.totals, sinks, out, lse, v_scale, out.stride(0), out.stride(1),
            lse.stride(0), lse.stride(1), **self.constants(), SPLITS_PAD=splits, num_warps=max(1, splits * dim // 4096),
            **launch,
        )  # fmt: skip
