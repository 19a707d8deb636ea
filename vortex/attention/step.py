"""The decode step of a model: plan once, then select and attend layer by layer, captured in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vortex.attention.counters import LayerReads, Tally
from vortex.attention.dense import DenseKernel, dense_kernels
from vortex.attention.provider import Features, Planned, Provider, StepShape
from vortex.codegen.compiled import CompiledFlow
from vortex.codegen.storage import DeviceStorage
from vortex.dsl.ir import Program
from vortex.dsl.policy import Budget
from vortex.vtensor import reuse
from vortex.vtensor.batch import Batch, BatchError
from vortex.vtensor.pool import KVPool
from vortex.vtensor.reference import Counts, ReferenceRunner
from vortex.vtensor.selection import Selection
from vortex.vtensor.storage import ReferenceStorage


@dataclass(frozen=True)
class StepOptions:
    """How a step is made; every field has a value that is right everywhere.

    provider      what attends selections; None: measured, or the reference on a CPU
    dense_kernel  what attends layers without a selection: a label of `dense_kernels`, "first" (needs no
                  `update`) or "auto" (measured)
    dense_below   tokens below which a row is dense; None: as the flow says, and "auto" is measured
    dense         no layer selects: the twin of a sparse step for batches whose every row is below `dense_below`
    max_tokens    of the longest request that may come; None: what the storage holds
    scale         of the logits; None: 1/sqrt(dim)
    totals        what counters add to, int64 [layers, 3]: shared by the steps of several numbers of requests
    say           told what was measured and chosen
    """

    provider: Provider | None = None
    dense_kernel: str = "first"
    dense_below: int | None = None
    dense: bool = False
    max_tokens: int | None = None
    scale: float | None = None
    totals: Tensor | None = None
    features: Features = field(default_factory=Features)
    say: Callable[[str], None] = print


class DecodeStep:
    """One decode step of all layers, for one number of requests.

    runner, storage  a flow and its memory
    pools            K and V of each layer
    batch            the tensors that an engine writes lengths, pages and slots to between replays
    q_dtype          of the queries, and of the result

    A step is `plan()`, then `run(layer, q)` for every layer in order; the last one adds to the counters. All of it
    can be captured after it ran once. Where `needs_update`, `update(lengths)` comes first, outside the graph. The
    engine clears `valid` for pool blocks whose tokens it frees or overwrites.

    Raises BatchError for sizes that do not fit together, ValueError for options that do not.
    """

    def __init__(
        self, runner: CompiledFlow | ReferenceRunner, storage: DeviceStorage | ReferenceStorage,
        pools: Sequence[KVPool], batch: Batch, q_dtype: torch.dtype, options: StepOptions | None = None,
    ) -> None:  # fmt: skip
        self.options = options = options or StepOptions()
        self.runner, self.storage, self.pools, self.batch = runner, storage, list(pools), batch
        self.program: Program = runner.program
        self._check(options)
        device = batch.lengths.device
        held = storage.max_blocks * batch.block_size
        self.max_tokens = min(options.max_tokens or held, held)
        self.scale = batch.heads.dim**-0.5 if options.scale is None else options.scale
        self.valid: Tensor = storage.valid
        size = (batch.requests, batch.heads.query)
        self.out = torch.zeros(*size, batch.heads.dim, dtype=q_dtype, device=device)
        self.lse = torch.zeros(size, dtype=torch.float32, device=device)
        self.dense_below, self.dense_reason = self._dense_below(q_dtype)
        self.whole = [options.dense or self._attends_all(layer) for layer in range(len(pools))]
        self.selects = [self._selects(layer) for layer in range(len(pools))]
        self.space = None
        if isinstance(runner, CompiledFlow):
            assert isinstance(storage, DeviceStorage)
            if any(self.selects):
                runner.dense_below = self.dense_below
                self.space = runner.workspace(storage, batch.requests, batch.blocks_per_page, device)
                if storage.layer_table is None and self.program.entries:
                    runner.bind_layers(storage, self.pools)
        self.plans: dict[StepShape, Planned] = {}
        self._first_shape(q_dtype)
        self.dense_label = ""
        self.dense_kernel = self._dense_kernel(q_dtype) if any(self.whole) else None
        self.tally = self._tally()

    def _check(self, options: StepOptions) -> None:
        program, batch = self.program, self.batch
        if batch.block_size != program.policy.block_size:
            raise BatchError(
                f"block_size: the flow has {program.policy.block_size}, the batch {batch.block_size}"
            )
        if not self.pools or len(self.pools) > program.shape.layers:
            raise BatchError(
                f"pools: one for each of 1 to {program.shape.layers} layers, got {len(self.pools)}"
            )
        if options.dense and program.states:
            raise ValueError(f"dense: {program.name} keeps state, so its indexer runs in every step")

    # What is decided before a graph is captured

    def _dense_below(self, q_dtype: torch.dtype) -> tuple[int, str]:
        """The number of tokens, and where it comes from."""
        given, declared = self.options.dense_below, self.program.policy.dense_below
        if given is not None:
            return given, "given"
        if declared != "auto":
            return int(declared), "the flow's"
        if self.options.dense or not isinstance(self.runner, CompiledFlow) or not self.batch.lengths.is_cuda:
            return 0, "not measured: there is no GPU" if not self.options.dense else "not needed"
        from vortex.attention.crossover import crossover

        assert isinstance(self.storage, DeviceStorage)
        found = crossover(self.runner, self.shape(q_dtype, 1), self.max_tokens, self.options.provider)
        self.options.say(f"dense_below = {found.dense_below}: {found.reason}")
        return found.dense_below, found.reason

    def _attends_all(self, layer: int) -> bool:
        """Whether no row of this layer can ever be sparse."""
        runner, policy = self.runner, self.program.policy
        if layer in runner.dense_layers:
            return True
        if not runner.shortcut:
            return False
        if self.max_tokens < self.dense_below:
            return True
        budget = Budget.parse(policy.budget)
        return budget.covers(self.max_tokens, policy.block_size, layer, self.program.shape.layers)

    def _selects(self, layer: int) -> bool:
        """Whether the indexer runs in this layer, for its own rows or for a layer that follows it."""
        if self.program.states:
            return True
        policy = self.program.policy
        group = reuse.followers(policy, layer, len(self.pools))
        return reuse.leader(policy, layer) == layer and not all(self.whole[each] for each in group)

    def shape(self, q_dtype: torch.dtype, width: int, lists_dense: bool = True) -> StepShape:
        batch = self.batch
        return StepShape(
            batch.requests, batch.heads, batch.block_size, batch.page_size, width,
            -(-self.max_tokens // batch.block_size), q_dtype, self.pools[0].tensors["k"].dtype,
            batch.lengths.device, fixed_counts(self.program), lists_dense,
        )  # fmt: skip

    def _first_shape(self, q_dtype: torch.dtype) -> None:
        """Plans the provider now where the tables' width is known: nothing is allocated in a step then."""
        if self.space is None or all(self.whole):
            return
        assert isinstance(self.runner, CompiledFlow)
        for layer, whole in enumerate(self.whole):
            if not whole:
                selection = self.runner.selection(self.space, layer)
                self._planned(self.shape(q_dtype, selection.ids.shape[2], selection.lists_dense), layer)

    def _planned(self, shape: StepShape, layer: int) -> Planned:
        if shape not in self.plans:
            provider = self.options.provider or default_provider(shape.device)
            self.plans[shape] = provider.plan(shape, self.options.features, layer)
        return self.plans[shape]

    def _dense_kernel(self, q_dtype: torch.dtype) -> DenseKernel:
        shape = self.shape(q_dtype, 1)
        makers = dense_kernels(shape, self.options.features)
        label = self.options.dense_kernel
        if label == "first":
            label = next(iter(makers))
        elif label == "auto":
            from vortex.attention.crossover import fastest_dense

            label, reason = fastest_dense(shape, self.options.features, self.max_tokens)
            self.options.say(f"dense kernel: {label}: {reason}")
        if label not in makers:
            raise ValueError(f"dense_kernel: one of {', '.join(makers)}, first or auto; got {label!r}")
        self.dense_label = label
        return makers[label](shape, self.options.features, self.batch, self.scale)

    def _tally(self) -> Tally:
        policy, layers = self.program.policy, len(self.pools)
        compiled = isinstance(self.runner, CompiledFlow)
        device, requests = self.batch.lengths.device, self.batch.requests
        if self.space is not None:
            assert isinstance(self.runner, CompiledFlow)
            dense, skipping = self.space.dense, self.runner.skipping(self.space)
        else:
            dense = torch.zeros(layers, requests, dtype=torch.int8, device=device)
            skipping = torch.ones(layers, dtype=torch.int8, device=device)
        leaders = [reuse.leader(policy, layer) if compiled else layer for layer in range(layers)]
        return Tally(requests, self.batch.heads, self.batch.block_size, self.whole, leaders, dense, skipping,
                     self.pools[0].tensors["k"].dtype, kernel=compiled, totals=self.options.totals)  # fmt: skip

    # A step

    @property
    def needs_update(self) -> bool:
        """Whether a kernel was chosen that is planned with lengths on the host."""
        chosen = [self.dense_label, *(plan.reason for plan in self.plans.values())]
        return any(each.lower().startswith("flashinfer") for each in chosen)

    def update(self, lengths: Sequence[int]) -> None:
        """Lengths of the coming step, known on the host; 0 for a padded slot. Never inside a captured graph."""
        if self.dense_kernel is not None:
            self.dense_kernel.update(lengths)
        if self.plans and fixed_counts(self.program):
            counts = [attended(self.program, length) for length in lengths]
            for plan in self.plans.values():
                plan.update(counts)

    def plan(self, batch: Batch | None = None) -> None:
        """Starts a step: what its lengths say for all layers, and entries of blocks that finished."""
        if batch is not None:
            if (batch.requests, batch.page_size) != (self.batch.requests, self.batch.page_size):
                raise BatchError(
                    f"batch: the step is for {self.batch.requests} requests and pages of {self.batch.page_size}"
                )
            self.batch = batch
        if not any(self.selects):
            return
        if isinstance(self.runner, CompiledFlow):
            assert isinstance(self.storage, DeviceStorage)
            self.runner.dense_below = self.dense_below
            self.runner.plan(self.storage, self.batch)
            self.runner.summarise_step(self.storage, self.pools[0], self.batch)
        else:
            self.runner.dense_below = self.dense_below
            self._summarise()

    def _summarise(self) -> None:
        """Entries of finished blocks that are not valid, with the reference."""
        assert isinstance(self.runner, ReferenceRunner) and isinstance(self.storage, ReferenceStorage)
        stale: set[int] = set()
        for row in range(self.batch.requests):
            ids = self.batch.pool_blocks(row, self.batch.finished_blocks(row))
            stale |= set(ids[self.valid[ids] == 0].tolist())
        if stale:
            blocks = torch.tensor(sorted(stale), device=self.valid.device)
            for layer, pool in enumerate(self.pools):
                self.runner.summarise(self.storage, layer, pool, blocks)
            self.valid[blocks] = 1

    def select(self, layer: int, q: Tensor) -> Selection:
        """The selection of a layer alone; `run` calls it."""
        pool = self.pools[layer]
        if isinstance(self.runner, CompiledFlow):
            assert isinstance(self.storage, DeviceStorage)
            counts = self.tally.counts[reuse.leader(self.program.policy, layer)]
            return self.runner.select(self.storage, layer, q, pool, self.batch, counts=counts)
        assert isinstance(self.storage, ReferenceStorage)
        found = self.runner.select(self.storage, layer, q, pool, self.batch)
        self.tally.counts[layer].copy_(found.counts)
        self.tally.dense[layer].copy_(found.dense)
        return found

    def run(self, layer: int, q: Tensor, out: Tensor | None = None, sinks: Tensor | None = None) -> Tensor:
        """Selects and attends: [requests, query heads, dim] -> the same shape, into `out` where it is given.

        Without `out` all layers write the same memory. After the last layer the counters are added to.
        """
        out = self.run_layer(layer, q, self.out if out is None else out, sinks)
        if layer == len(self.pools) - 1:
            self.count()
        return out

    def count(self) -> None:
        """Adds what the layers of this step attended to the counters; `run` calls it after the last one."""
        self.tally.add(self.batch)

    def run_layer(self, layer: int, q: Tensor, out: Tensor, sinks: Tensor | None = None) -> Tensor:
        """`run` without the counters."""
        follows = not self.whole[layer] or self.selects[layer]
        selection = self.select(layer, q) if follows else None
        if self.whole[layer]:
            assert self.dense_kernel is not None
            self.dense_kernel.run(q, self.pools[layer], self.batch, out, sinks)
        else:
            assert selection is not None
            self.attend(layer, q, selection, out, sinks)
        return out

    def attend(
        self, layer: int, q: Tensor, selection: Selection, out: Tensor, sinks: Tensor | None = None
    ) -> None:
        """Attention over a selection alone; `run` calls it."""
        planned = self._planned(self.shape(q.dtype, selection.ids.shape[2], selection.lists_dense), layer)
        planned.run(q, self.pools[layer], selection, self.batch, self.scale, out, self.lse, sinks)

    def counters(self) -> list[LayerReads]:
        """What each layer attended since the last `reset_counters`. Synchronises with the device."""
        return self.tally.read()

    def reset_counters(self) -> None:
        self.tally.reset()


def default_provider(device: torch.device) -> Provider:
    """Measured on a GPU, the reference elsewhere."""
    if device.type == "cuda":
        from vortex.attention.auto import AutoProvider

        return AutoProvider()
    from vortex.attention.reference import ReferenceProvider

    return ReferenceProvider()


def fixed_counts(program: Program) -> bool:
    """Whether attended blocks follow from the length alone, alike in every layer: a topK that fills one constant
    budget, from scores that nothing sets to -inf."""
    policy, shape, nodes = program.policy, program.shape, program.indexer.nodes
    if program.indexer.result is None or (policy.reuse_steps, policy.reuse_layers) != (1, 1):
        return False
    made = nodes[program.indexer.result]
    infinite = any(value == float("-inf") for node in nodes for _, value in node.attrs)
    logarithm = any(node.op in ("Log", "Div", "Where") for node in nodes)
    if made.op != "topK" or made.attr("k") is not None or infinite or logarithm or policy.dense_layers:
        return False
    budget = Budget.parse(policy.budget)
    found = {
        budget.device_source(block_size=policy.block_size, layer=layer, layers=shape.layers)
        for layer in range(shape.layers)
    }
    return len(found) == 1 and next(iter(found)).isdecimal()


def attended(program: Program, length: int) -> int:
    """Blocks that a row attends where `fixed_counts`."""
    policy = program.policy
    budget = Budget.parse(policy.budget).evaluate(tokens=length, block_size=policy.block_size)
    return Counts.of(length, program).attended(budget)
