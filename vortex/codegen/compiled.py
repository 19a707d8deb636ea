"""A compiled flow: what engines plan, summarise and select with. Nothing in a step waits for the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vortex.codegen import reused, summaries
from vortex.codegen.build import Built, KernelSource, Options, build
from vortex.codegen.device import device_name, multiprocessors, overlaps_launches
from vortex.codegen.launch import Kernels
from vortex.codegen.schedule import Schedule
from vortex.codegen.select import EXACT
from vortex.codegen.steps import Kernel
from vortex.codegen.storage import DeviceStorage, SetMemory, Workspace, allocate, workspace
from vortex.codegen.templates import render
from vortex.codegen.tune import kept
from vortex.dsl.ir import Program
from vortex.dsl.policy import Layers
from vortex.vtensor import reuse
from vortex.vtensor.batch import Batch, BatchError, Heads
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection
from vortex.vtensor.weights import load_weights

if TYPE_CHECKING:
    from torch import Tensor

FUSED = -1
"""Number of the kernel that runs in place of all steps of a plan."""


class CompiledFlow:
    """Runs a program's kernels on a device (or in Triton's interpreter).

    shortcut  rows whose budget covers all their blocks are marked dense; off, what is selected decides
    form      "fused" or "split" rows whatever they cost, "auto" by cost for each batch shape
    weights   values of parameters [layers,] [kv heads,] axes…; by default as the program declares them

    `dense_below` is the number of tokens below which rows are dense: as the flow says, 0 for "auto" until whoever
    measures it sets it.
    """

    def __init__(
        self,
        program: Program,
        options: Options | None = None,
        *,
        shortcut: bool = True,
        weights: Mapping[str, Tensor] | None = None,
        schedules: Mapping[int, Schedule] | None = None,
        form: str = "auto",
    ) -> None:
        reuse.check_reuse(program)
        options = options or Options()
        if schedules is None and device_name():
            schedules = kept(program, options, device_name())
        self.built: Built = build(program, options, schedules)
        self.program = program = self.built.program
        self.block_size = program.policy.block_size
        self.pdl = overlaps_launches()
        self.launch = {"launch_pdl": True} if self.pdl else {}
        self.shortcut = shortcut
        self.wanted_form = form
        given = weights if weights is not None else load_weights(self.program)
        self.kernels = Kernels(self.built, {each.name: given[each.name] for each in self.program.weights})
        self.workspaces: dict[tuple[Any, ...], Workspace] = {}
        self.dense_layers = Layers.parse(program.policy.dense_layers).numbers(program.shape.layers)
        below = program.policy.dense_below
        self.dense_below = 0 if below == "auto" else int(below)

    # Memory

    def allocate(
        self, *, layers: int, pool_blocks: int, slots: int, max_blocks: int, heads: Heads, device: Any
    ) -> DeviceStorage:
        self._check(heads)
        self.kernels.move_weights(device)
        return allocate(
            self.built, layers=layers, pool_blocks=pool_blocks, slots=slots, max_blocks=max_blocks, heads=heads,
            device=device,
        )  # fmt: skip

    def _check(self, heads: Heads) -> None:
        shape = self.program.shape
        if (heads.group, heads.dim) != (shape.group, shape.head_dim):
            raise BatchError(
                f"heads: the flow was traced for a group of {shape.group} and head dim {shape.head_dim}, got {heads}"
            )

    def reset_slot(self, storage: DeviceStorage, slot: int) -> None:
        import torch

        self.reset_slots(storage, torch.tensor([slot], device=storage.valid.device))

    def reset_slots(self, storage: DeviceStorage, slots: Tensor) -> None:
        """New requests start in these state slots, int64 [m]. Waits for nothing."""
        for layer in storage.states:
            for state in self.program.states:
                layer[state.name].index_fill_(0, slots, float(state.default))
        if storage.kept is not None:
            storage.kept.held.index_fill_(0, slots, 0)

    def workspace(
        self, storage: DeviceStorage, requests: int, blocks_per_page: int, device: Any
    ) -> Workspace:
        """Scratch memory for batches of this many rows: made before a graph is captured."""
        key = (requests, storage.max_blocks, storage.heads, blocks_per_page, str(device))
        if key not in self.workspaces:
            larger = [
                made
                for other, made in self.workspaces.items()
                if other[1:] == key[1:] and made.requests > requests
            ]
            # A selection that takes most multiprocessors neither starts early nor lets attention do so: thread blocks
            # that are placed while some multiprocessors are still taken lie unevenly.
            few = 2 * requests * storage.heads.kv <= multiprocessors(storage.valid)
            self.workspaces[key] = workspace(
                self.built,
                requests,
                storage.max_blocks,
                storage.heads,
                blocks_per_page,
                device,
                overlap=self.pdl and few,
                within=max(larger, key=lambda made: made.requests, default=None),
            )
            self.workspaces[key].fused = self._fused(requests * storage.heads.kv, storage.max_blocks)
        return self.workspaces[key]

    def _fused(self, rows: int, blocks: int) -> KernelSource | None:
        """The fused kernel where it is wanted, or estimated to be cheaper than its parts."""
        form = self.built.form(rows, blocks)
        if self.program.policy.reuse_steps > 1:
            return None  # rows that do not select in a step are told apart by their kernels' lengths
        if form is None or self.wanted_form == "split" or not (form.fused or self.wanted_form == "fused"):
            return None
        return self.built.fused(blocks)

    # Launching

    def plan(self, storage: DeviceStorage, batch: Batch) -> None:
        """Sizes, budgets and chunks of a step, from the lengths on the device. Once a step, for all layers.

        Where selections serve several steps, a plan is followed by `select` of every layer.
        """
        space = self.workspace(storage, batch.requests, batch.blocks_per_page, batch.lengths.device)
        policy = self.program.policy
        lists = [each for tile in self.built.tiles for each in space.work[tile]]
        self.kernels.function(self.built.kernel("plan"), "plan_step")[(batch.requests,)](
            batch.lengths, batch.requests, space.finished, space.take, space.dense, *lists,
            BLOCK_SIZE=self.block_size, SINKS=policy.sink_blocks, RECENT=policy.recent_blocks,
            DENSE_BELOW=self.dense_below, REQUESTS=_power(batch.requests), CAPACITY=space.capacity,
            LAYERS=self.program.shape.layers, FILL=128, num_warps=1,
        )  # fmt: skip
        space.planned = batch
        if storage.kept is not None:
            reused.plan_reuse(self.program, storage, batch, space, self.skipping(space))
        # What a kernel reads before it waits must be older than the kernel before it: the plan is not.
        space.fresh = True

    def skipping(self, space: Workspace) -> Tensor:
        """int8 [layers]: whether a dense row of a layer attends all blocks whatever is selected."""
        import torch

        if space.skipping is None:
            flags = [self.shortcut or layer in self.dense_layers for layer in range(space.dense.shape[0])]
            space.skipping = torch.tensor(flags, dtype=torch.int8, device=space.dense.device)
        return space.skipping

    # Summaries

    def summarise(self, storage: DeviceStorage, layer: int, pool: KVPool, block_ids: Tensor) -> None:
        """Writes the entries of pool blocks of one layer; `block_ids`: int64 [m]."""
        summaries.summarise(self.kernels, storage, layer, pool, block_ids)

    def bind_layers(self, storage: DeviceStorage, pools: list[KVPool]) -> None:
        """Tells where the pools of all layers lie, for `summarise_step`. Once, before capture."""
        summaries.bind_layers(self.kernels, storage, pools)

    def summarise_step(self, storage: DeviceStorage, pool: KVPool, batch: Batch) -> None:
        """At the start of a decode step: entries of every finished block of the batch that is not valid.

        `pool` gives strides, of any layer; `bind_layers` was called. Marks the blocks valid. Capturable.
        """
        space = self.workspace(storage, batch.requests, batch.blocks_per_page, batch.lengths.device)
        summaries.summarise_step(self.kernels, storage, pool, batch, space)

    # Selection

    def select(
        self, storage: DeviceStorage, layer: int, q: Tensor, pool: KVPool, batch: Batch, *,
        counts: Tensor | None = None,
    ) -> Selection:  # fmt: skip
        """The attended blocks of every (request, KV head). The tables belong to the flow: the next call of this
        batch shape writes them again.

        counts: int32 [requests, kv heads] to write the counts to instead, e.g. of a layer's own.
        """
        self._check(batch.heads)
        space = self.workspace(storage, batch.requests, batch.blocks_per_page, batch.lengths.device)
        if space.planned is not batch:
            self.plan(storage, batch)
        if counts is not None:
            made = self._attended(space)
            made.out = replace(made.out, counts=counts)
        if self.selects(layer):
            lengths = batch.lengths if space.active is None else space.active[layer]
            finished = space.finished if space.active_finished is None else space.active_finished[layer]
            if space.fused is not None:
                self._launch_fused(space.fused, storage, layer, q, pool, batch, space)
            for number, step in enumerate(self.built.plan.steps if space.fused is None else ()):
                if isinstance(step, Kernel):
                    self._launch(step, number, storage, layer, q, pool, batch, space, lengths)
                else:
                    self._select(space.sets[step.node], layer, batch, space, finished)
            if storage.kept is not None:
                reused.keep_rows(self.program, storage, layer, batch, space, self._attended(space))
        return self.selection(space, layer)

    def parts(self, storage: DeviceStorage, batch: Batch) -> dict[str, int]:
        """What `select` launches for batches of this shape: name -> number for `run_step`."""
        space = self.workspace(storage, batch.requests, batch.blocks_per_page, batch.lengths.device)
        if space.fused is not None:
            return {"fused": FUSED}
        names = {}
        for number, step in enumerate(self.built.plan.steps):
            if isinstance(step, Kernel):
                names[self.built.of_step(number).name] = number
            else:
                names["select" if step.final else f"select_{number}"] = number
        return names

    def selects(self, layer: int) -> bool:
        """Whether the indexer runs in this layer: its own rows, or those of a layer that follows it, need it."""
        policy, layers = self.program.policy, self.program.shape.layers
        if reuse.leader(policy, layer) != layer:
            return False
        group = reuse.followers(policy, layer, layers)
        return bool(self.program.states) or not all(each in self.dense_layers for each in group)

    @property
    def _result(self) -> int:
        result = self.program.indexer.result
        assert result is not None
        return result

    def _dense(self, space: Workspace, layer: int) -> Tensor:
        """int8 [requests]: rows of this layer that attend all blocks, whatever is selected."""
        return space.dense[layer] if self.shortcut or layer in self.dense_layers else space.sparse

    def run_step(
        self, number: int, storage: DeviceStorage, layer: int, q: Tensor, pool: KVPool, batch: Batch
    ) -> None:
        """One kernel alone, for measurements: a step of the plan, or the one in their place (FUSED); `plan` was
        called for this batch."""
        space = self.workspace(storage, batch.requests, batch.blocks_per_page, batch.lengths.device)
        if number == FUSED:
            assert space.fused is not None
            self._launch_fused(space.fused, storage, layer, q, pool, batch, space)
            return
        step = self.built.plan.steps[number]
        if isinstance(step, Kernel):
            self._launch(step, number, storage, layer, q, pool, batch, space)
        else:
            self._select(space.sets[step.node], layer, batch, space)

    def _launch(
        self, step: Kernel, number: int, storage: DeviceStorage, layer: int, q: Tensor, pool: KVPool, batch: Batch,
        space: Workspace, lengths: Tensor | None = None,
    ) -> None:  # fmt: skip
        source = self.built.of_step(number)
        tile = source.schedule.tile
        heads = storage.heads.kv
        chunks = -(-space.capacity // tile)
        work = space.work.get(tile, (space.everything, space.everything))
        domain, listed = step.passes[0].domain, False
        grid: tuple[int, ...] = (heads, batch.requests)
        if step.kind == "map":
            if domain is not None:
                chunks = -(-space.sets[domain].width // tile)
            # Thread blocks that all fit at once, and another round, need no list of chunks.
            workers = max(source.schedule.workers * multiprocessors(batch.lengths) // heads, 1)
            listed = domain is None and batch.requests * chunks > workers
            grid = (heads, workers) if listed else (*grid, chunks)
        values = self.kernels.values(source, storage, layer, q, pool, space)
        launch = {} if space.fresh else self.launch
        space.fresh = False
        self.kernels.function(source)[grid](
            batch.lengths if lengths is None else lengths, batch.page_table, batch.page_table.stride(0),
            batch.slots, *work, *values,
            HEADS=heads, BLOCK_SIZE=self.block_size, BLOCKS_PER_PAGE=batch.blocks_per_page,
            CAPACITY=space.capacity, STATE_BLOCKS=storage.max_blocks, CHUNKS=chunks, TILE=tile,
            LISTED=listed, PDL=self.pdl, **launch,
            num_warps=source.schedule.warps, num_stages=source.schedule.stages,
        )  # fmt: skip

    def _launch_fused(
        self, source: KernelSource, storage: DeviceStorage, layer: int, q: Tensor, pool: KVPool, batch: Batch,
        space: Workspace,
    ) -> None:  # fmt: skip
        """Scores, selection and ids of every row in one kernel."""
        made, config = self._attended(space), self._attended(space).selector.config
        heads = storage.heads.kv
        dense = space.dense[layer] if self.shortcut and self._alone else None
        take = space.everything if made.take is None else space.take[made.take, layer]
        values = self.kernels.values(source, storage, layer, q, pool, space)
        launch = {} if space.fresh else self.launch
        space.fresh = False
        self.kernels.function(source, "fused")[(heads, batch.requests)](
            batch.lengths, batch.page_table, batch.page_table.stride(0), batch.slots, space.finished, take, dense,
            made.out.ids, made.out.counts, layer, config.seed & 0x7FFFFFFF, *values,
            HEADS=heads, BLOCK_SIZE=self.block_size, BLOCKS_PER_PAGE=batch.blocks_per_page, CAPACITY=space.capacity,
            STATE_BLOCKS=storage.max_blocks, TILE=source.schedule.tile, WIDTH=made.width,
            FRAME=min(_power(made.width), 2048), SINKS=config.sinks, RECENT=config.recent,
            STOCHASTIC=config.recall is not None, RECALL=math.ceil((config.recall or 1) * EXACT), PROBES=2,
            PDL=self.pdl, **launch, num_warps=source.schedule.warps,
        )  # fmt: skip

    def _select(
        self, made: SetMemory, layer: int, batch: Batch, space: Workspace, finished: Tensor | None = None
    ) -> None:
        scores = space.buffers[made.step.buffer].view(-1, space.capacity)
        if self.program.policy.share_heads and made.step.shares:
            self._combine(scores, batch, space)
        finished = space.finished if finished is None else finished
        if made.step.final and self.shortcut:
            dense = space.dense[layer] if self._alone else None
            self._run_selector(space.attended, scores, finished, layer, batch, space, dense)
        if made is not space.attended or not self.shortcut:
            self._run_selector(made, scores, finished, layer, batch, space, None)

    def _run_selector(
        self, made: SetMemory, scores: Tensor, finished: Tensor, layer: int, batch: Batch, space: Workspace,
        dense: Tensor | None,
    ) -> None:  # fmt: skip
        take = space.everything if made.take is None else space.take[made.take, layer]
        made.selector.run(
            scores,
            finished,
            take,
            made.out,
            layer=layer,
            bound=made.bound,
            dense=dense,
            lengths=batch.lengths,
        )

    @property
    def _alone(self) -> bool:
        """Whether every selection serves one layer in one step."""
        return self.program.policy.reuse_steps == self.program.policy.reuse_layers == 1

    def _combine(self, scores: Tensor, batch: Batch, space: Workspace) -> None:
        how = str(self.program.policy.share_heads)
        source = KernelSource("combine", render("combine.py.jinja", origin=[], how=how))
        combine = self.kernels.function(source, "combine_heads")
        heads = scores.shape[0] // batch.requests
        workers = min(-(-space.capacity // 256), 64)
        combine[(workers, batch.requests)](
            batch.lengths, scores, HEADS=heads, HEAD_LANES=_power(heads), BLOCK_SIZE=self.block_size,
            CAPACITY=space.capacity, TILE=256, num_warps=4,
        )  # fmt: skip

    def selection(self, space: Workspace, layer: int) -> Selection:
        """The tables that `select` of this layer fills, as views that stay where they are."""
        import torch

        made = self._attended(space).out
        # A budget that covers a row's blocks has slots for them; other dense rows know no bound but the longest.
        # Where nothing selects, nothing is written.
        by_budget = not self.dense_layers and not self.dense_below
        lists = (
            self._alone and self.selects(layer) and (by_budget or space.holds_all)
            if self.shortcut
            else layer not in self.dense_layers
        )
        return Selection(made.ids, made.counts, self._dense(space, layer).view(torch.bool), lists)

    def _attended(self, space: Workspace) -> SetMemory:
        """What attention reads: with all blocks of dense rows, or as the flow asked with the shortcut off."""
        return space.attended if self.shortcut else space.sets[self._result]


def _power(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


__all__ = ["CompiledFlow", "Options"]
