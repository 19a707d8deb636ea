"""The device memory of a compiled flow: entries by pool block, states by request slot, scratch for one batch shape."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vortex.codegen.build import Built, KernelSource, budget_of
from vortex.codegen.memory import row_elements
from vortex.codegen.select import SelectConfig, Selector, SelectOutput
from vortex.codegen.steps import Select
from vortex.dsl.policy import Budget
from vortex.vtensor.batch import Heads

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def torch_dtype(storage: str) -> torch.dtype:
    """How a storage dtype lies in memory; packed and boolean values are bytes."""
    import torch

    return {
        "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn,
        "int8": torch.int8, "int4": torch.uint8, "sign": torch.uint8, "int32": torch.int32, "bool": torch.int8,
    }[storage]  # fmt: skip


@dataclass
class KeptSets:
    """Selections for later steps, by request slot and leader layer.

    held  int8 [slots, layers]; ids: int32 [slots, layers, kv heads, width]; counts: int32 [slots, layers, kv heads]
    """

    held: Tensor
    ids: Tensor
    counts: Tensor


@dataclass
class DeviceStorage:
    """Entries and states of all layers.

    entries  per layer, name -> [pool blocks, kv heads, stored elements] in the storage dtype
    scales   per layer, name -> fp16 [pool blocks, kv heads, rows of the entry] of scaled integers
    states   per layer, name -> fp32 [slots, kv heads, (max blocks,) elements]
    valid    int8 [pool blocks]: entries are those of the tokens that lie there now, in every layer
    """

    heads: Heads
    max_blocks: int
    valid: Tensor
    entries: list[dict[str, Tensor]] = field(default_factory=list)
    scales: list[dict[str, Tensor]] = field(default_factory=list)
    states: list[dict[str, Tensor]] = field(default_factory=list)
    layer_table: Tensor | None = None
    kept: KeptSets | None = None

    def tensors(self) -> list[Tensor]:
        layers = (*self.entries, *self.scales, *self.states)
        kept = [] if self.kept is None else [self.kept.held, self.kept.ids, self.kept.counts]
        return [self.valid, *kept, *(tensor for layer in layers for tensor in layer.values())]

    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())


def allocate(
    built: Built, *, layers: int, pool_blocks: int, slots: int, max_blocks: int, heads: Heads, device: Any
) -> DeviceStorage:
    import torch

    storage = DeviceStorage(heads, max_blocks, torch.zeros(pool_blocks, dtype=torch.int8, device=device))
    for _ in range(layers):
        entries, scales, states = {}, {}, {}
        for entry in built.program.entries:
            kind = built.options.entry_dtype if entry.storage == "kv" else entry.storage
            shape = (pool_blocks, heads.kv, max(row_elements(entry.axes, kind), 1))
            entries[entry.name] = torch.empty(shape, dtype=torch_dtype(kind), device=device)
            if kind in ("int8", "int4"):
                rows = math.prod(axis.size or 1 for axis in entry.axes[:-1])
                scales[entry.name] = torch.empty(
                    (pool_blocks, heads.kv, rows), dtype=torch.float16, device=device
                )
        for state in built.program.states:
            ragged = any(axis.size is None for axis in state.axes)
            count = math.prod(axis.size or 1 for axis in state.axes)
            held = (slots, heads.kv, *([max_blocks] if ragged else []), count)
            states[state.name] = torch.full(held, float(state.default), dtype=torch.float32, device=device)
        storage.entries.append(entries)
        storage.scales.append(scales)
        storage.states.append(states)
    if built.program.policy.reuse_steps > 1:
        assert built.program.indexer.result is not None
        width = set_width(built, built.program.indexer.result, max_blocks)
        places = (slots, built.program.shape.layers)
        storage.kept = KeptSets(
            torch.zeros(places, dtype=torch.int8, device=device),
            torch.full((*places, heads.kv, width), -1, dtype=torch.int32, device=device),
            torch.zeros((*places, heads.kv), dtype=torch.int32, device=device),
        )
    return storage


def set_width(built: Built, node: int, max_blocks: int) -> int:
    """Slots for the ids of a set that a selection makes, the current block included."""
    budget = budget_of(built.program, node)
    policy, layers = built.program.policy, built.program.shape.layers
    # A short memory holds fewer blocks than are reserved in a long one, which the kernels are written for.
    reserved = policy.sink_blocks + policy.recent_blocks + 1
    if budget is None:
        return max(max_blocks + 1, reserved)
    budgets = {budget.text: budget}
    if node == built.program.indexer.result:
        budgets[policy.budget] = Budget.parse(policy.budget)
    tokens = max_blocks * policy.block_size
    most = max(
        each.most(tokens, policy.block_size, layer, layers)
        for each in budgets.values()
        for layer in range(layers)
    )
    if policy.reuse_steps > 1 and node == built.program.indexer.result:
        # A kept set is joined with the blocks that are recent and current by now.
        most = max(most, reserved) + policy.recent_blocks + 1
    return max(min(most, max_blocks + 1), reserved)


@dataclass
class SetMemory:
    """One selection of a workspace: its kernel, and where its ids go."""

    step: Select
    selector: Selector
    out: SelectOutput
    width: int
    bound: float
    take: int | None


@dataclass
class Workspace:
    """Scratch memory of one batch shape; nothing is allocated after it is made.

    finished  int32 [requests]; take: int32 [selections + 1, layers, requests]; dense: int8 [layers, requests]
    work      chunk size -> (list of chunks, how many)
    buffers   key of the plan's buffer -> fp32 or int32 [rows, (capacity,) elements]
    sets      node -> its selection
    attended  the selection of the result, with all blocks of rows that are dense; that of `sets` unless kernels
              run over its members, which must be what the flow asked for
    holds_all whether `attended` has room for all blocks of the longest row
    sparse    int8 [requests]: zeros, the dense rows of a layer without any
    active    int32 [layers, requests]: lengths of the rows that select in this step, where not all do;
              active_finished: their finished blocks, -1 for the others
    fused     the one kernel that rows of this shape run, where that is cheaper than the steps of the plan
    planned   the batch that was planned last; fresh: no kernel was launched since
    """

    requests: int
    capacity: int
    finished: Tensor
    take: Tensor
    dense: Tensor
    everything: Tensor
    work: dict[int, tuple[Tensor, Tensor]]
    buffers: dict[str, Tensor]
    sets: dict[int, SetMemory]
    repair: Tensor
    sparse: Tensor
    active: Tensor | None = None
    active_finished: Tensor | None = None
    skipping: Tensor | None = None
    attended: SetMemory = field(init=False)
    holds_all: bool = True
    fused: KernelSource | None = None
    planned: Any = None
    fresh: bool = False


def workspace(
    built: Built, requests: int, max_blocks: int, heads: Heads, blocks_per_page: int, device: Any,
    *, overlap: bool = False, within: Workspace | None = None,
) -> Workspace:  # fmt: skip
    """Scratch memory; overlap: kernels start while the ones before them end.

    within: memory of more requests whose buffers are used, because only one of the two runs at a time
    """
    import torch

    layers = built.program.shape.layers
    # Rows of scores start on 16 bytes.
    capacity = -(-max(max_blocks, 1) // 16) * 16
    rows = requests * heads.kv
    options = {"dtype": torch.int32, "device": device}
    buffers = {}
    for buffer in built.plan.buffers:
        if within is not None:
            buffers[buffer.key] = within.buffers[buffer.key][:rows]
            continue
        shape = (rows, *([] if buffer.layout == "row" else [capacity]), buffer.elements)
        dtype = torch.int32 if buffer.dtype == "int32" else torch.float32
        buffers[buffer.key] = torch.zeros(shape, dtype=dtype, device=device)
    work = {}
    for tile in built.tiles:
        chunks = -(-capacity // tile)
        work[tile] = (torch.zeros(requests * chunks, **options), torch.zeros(1, **options))
    made = Workspace(
        requests,
        capacity,
        torch.zeros(requests, **options),
        torch.zeros(len(built.selections) + 1, layers, requests, **options),
        torch.zeros(layers, requests, dtype=torch.int8, device=device),
        torch.full((requests,), capacity, **options),
        work,
        buffers,
        {},
        torch.zeros(requests, **options),
        torch.zeros(requests, dtype=torch.int8, device=device),
    )
    if built.program.policy.reuse_steps > 1:
        made.active, made.active_finished = torch.zeros(2, layers, requests, **options)
    for step in built.plan.steps:
        if isinstance(step, Select):
            memory = functools.partial(
                _set_memory, built, step, made, heads, max_blocks, blocks_per_page, device, overlap
            )
            made.sets[step.node] = memory()
            if step.final:
                made.attended = memory() if step.inner else made.sets[step.node]
    made.holds_all = made.attended.width > max_blocks
    return made


def _set_memory(
    built: Built,
    step: Select,
    made: Workspace,
    heads: Heads,
    max_blocks: int,
    blocks_per_page: int,
    device: Any,
    overlap: bool,
) -> SetMemory:
    import torch

    node = built.program.indexer.nodes[step.node]
    policy = built.program.policy
    width = set_width(built, step.node, max_blocks)
    kind = {"topK": "top_k", "topP": "top_p"}.get(node.op, "threshold")
    bound = {"topP": node.attr("p"), "Threshold": node.attr("t"), "topK": 0.0}.get(node.op, 0.5)
    recall = node.attr("recall") if node.op == "topK" and node.attr("mode") == "stochastic" else None
    config = SelectConfig(
        kind=kind,  # type: ignore[arg-type]
        capacity=made.capacity,
        width=width,
        kv_heads=heads.kv,
        block_size=policy.block_size,
        blocks_per_page=blocks_per_page,
        # A set that is not the result holds what it was asked for alone, unless a selection made it.
        sinks=policy.sink_blocks if step.reserves else 0,
        recent=policy.recent_blocks if step.reserves else 0,
        recall=recall,  # type: ignore[arg-type]
        seed=int(node.attr("seed") or 0),  # type: ignore[arg-type]
    )
    rows = (made.requests, heads.kv)
    out = SelectOutput(
        torch.full((*rows, width), -1, dtype=torch.int32, device=device),
        torch.zeros(rows, dtype=torch.int32, device=device),
    )
    own = budget_of(built.program, step.node)
    take = None if own is None else built.selections.index(step.node) + 1
    selector = Selector(config, made.requests, device, overlap=overlap)
    return SetMemory(step, selector, out, width, float(bound), take)  # type: ignore[arg-type]
