"""Schedules that were measured on a device: a small search, kept in the user's cache folder, read when a flow is built.

A search runs in `vortex tune` or before a graph is captured, never while serving.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vortex.codegen.build import Built, Options, build
from vortex.codegen.cache import versions
from vortex.codegen.folder import private_folder, write_whole
from vortex.codegen.schedule import MAP_ELEMENTS, Schedule
from vortex.codegen.steps import Kernel
from vortex.dsl.ir import Function, Program
from vortex.dsl.text import print_program

if TYPE_CHECKING:
    import torch

    from vortex.codegen.compiled import CompiledFlow
    from vortex.vtensor.batch import Batch
    from vortex.vtensor.pool import KVPool

LAYERS = 8
"""Calls in the graph that is timed, each on entries of its own."""


def key(program: Program, options: Options, device: str) -> str:
    """Content of the program (without places in its file), options, versions and device."""
    bare = replace(program, file="", cache=_bare(program.cache), indexer=_bare(program.indexer))
    parts = [print_program(bare), asdict(options), dict(versions()), device]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _bare(function: Function) -> Function:
    nodes = tuple(replace(node, location=None) for node in function.nodes)
    return replace(
        function, nodes=nodes, stores=tuple(replace(each, location=None) for each in function.stores)
    )


def _path(program: Program, options: Options, device: str) -> Path:
    return private_folder("schedules") / f"{key(program, options, device)}.json"


def kept(program: Program, options: Options, device: str) -> dict[int, Schedule]:
    """Schedules that a search found before, by step of the plan; none where no search was made or it is unreadable."""
    try:
        found = json.loads(_path(program, options, device).read_text())
        return {int(step): Schedule(**fields) for step, fields in found["schedules"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def keep(program: Program, options: Options, device: str, found: Mapping[int, Schedule], times: Any) -> Path:
    path = _path(program, options, device)
    record = {"schedules": {str(step): asdict(each) for step, each in found.items()}, "times": times}
    write_whole(path, json.dumps(record, indent=1))
    return path


def candidates(chosen: Schedule) -> Iterator[Schedule]:
    """Schedules near the default one: other tiles, with warps that keep its elements a thread within reach."""
    for scale in (1, 0.5, 2, 4):
        tile = int(chosen.tile * scale)
        for warps in (1, 2, 4, 8):
            held = tile * chosen.elements / (32 * warps)
            if tile >= 1 and held <= 4 * MAP_ELEMENTS / 32 and (held >= 32 or warps == 1):
                for stages in (1, 2, 3):
                    yield replace(chosen, tile=tile, warps=warps, stages=stages)


@dataclass(frozen=True)
class Tried:
    """One schedule of one step: microseconds, or why it could not run."""

    step: int
    schedule: Schedule
    microseconds: float | None
    failure: str = ""


class Tuner:
    """Searches the schedules of a flow's map kernels at one batch shape, over random entries.

    requests, tokens  of the batch; the searched schedules serve every batch shape
    """

    def __init__(
        self, program: Program, options: Options, requests: int, tokens: int, device: torch.device
    ) -> None:
        self.program, self.options, self.device = program, options, device
        self.requests, self.tokens = requests, tokens
        self.built: Built = build(program, options)

    def search(self) -> Iterator[Tried]:
        """Measures candidates of every map kernel, one step after another; `best` and `keep` use what was yielded."""
        self.tried: list[Tried] = []
        for number, step in enumerate(self.built.plan.steps):
            if isinstance(step, Kernel) and step.kind == "map":
                for each in candidates(self.built.of_step(number).schedule):
                    tried = self._try(number, each)
                    self.tried.append(tried)
                    yield tried

    def _try(self, number: int, schedule: Schedule) -> Tried:
        from triton.errors import TritonError

        from vortex.codegen.timing import time_in_graph

        calls = self.calls(number, schedule)
        try:
            return Tried(number, schedule, time_in_graph(calls, replays=10).median)
        except (TritonError, RuntimeError) as error:
            # A tile that needs too much shared memory or too many registers is a candidate that lost.
            return Tried(number, schedule, None, f"{type(error).__name__}: {error}"[:200])

    def calls(self, number: int, schedule: Schedule) -> list[Callable[[], None]]:
        """What is timed: the step once a layer, and again where the model has fewer layers than a graph has calls."""
        from vortex.codegen.compiled import CompiledFlow

        flow = CompiledFlow(self.program, self.options, schedules={number: schedule})
        storage, batch, pool, q = self._inputs(flow)
        flow.plan(storage, batch)
        return [
            partial(flow.run_step, number, storage, call % len(storage.entries), q, pool, batch)
            for call in range(LAYERS)
        ]

    def _inputs(self, flow: CompiledFlow) -> tuple[Any, Batch, KVPool, torch.Tensor]:
        import torch

        from vortex.codegen.storage import torch_dtype
        from vortex.vtensor.batch import Batch, Heads
        from vortex.vtensor.pool import KVPool

        shape, size = self.program.shape, self.program.policy.block_size
        heads = Heads(shape.query_heads, shape.kv_heads, shape.head_dim)
        blocks = -(-self.tokens // size)
        order = torch.randperm(self.requests * blocks, device=self.device, dtype=torch.int32)
        batch = Batch(
            torch.full((self.requests,), self.tokens, dtype=torch.int32, device=self.device),
            order.view(self.requests, blocks), torch.arange(self.requests, dtype=torch.int32, device=self.device),
            size, size, heads,
        )  # fmt: skip
        layers = min(LAYERS, shape.layers)
        storage = flow.allocate(
            layers=layers, pool_blocks=self.requests * blocks, slots=self.requests, max_blocks=blocks, heads=heads,
            device=self.device,
        )  # fmt: skip
        for layer in storage.entries:
            for entry in layer.values():
                entry.copy_(torch.randn(entry.shape, device=self.device).to(entry.dtype))
        dtype = torch_dtype(self.options.kv_dtype)
        kv = torch.randn(self.requests * blocks * size, heads.kv, heads.dim, device=self.device).to(dtype)
        q = torch.randn(self.requests, heads.query, heads.dim, device=self.device)
        q = q.to(torch.bfloat16 if dtype.itemsize == 1 else dtype)
        return storage, batch, KVPool({"k": kv, "v": kv}, size), q

    def best(self) -> dict[int, Schedule]:
        """The fastest schedule of every step."""
        found: dict[int, Tried] = {}
        for each in self.tried:
            before = found.get(each.step)
            if each.microseconds is not None and (before is None or each.microseconds < before.microseconds):  # type: ignore[operator]
                found[each.step] = each
        return {step: each.schedule for step, each in found.items()}

    def keep(self) -> Path:
        import torch

        times = [{**asdict(each.schedule), "step": each.step, "us": each.microseconds} for each in self.tried]
        return keep(self.program, self.options, torch.cuda.get_device_name(self.device), self.best(), times)
