"""The device memory of a compiled flow: entries by pool block, states by request slot, scratch for one batch shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vortex.codegen.build import Built, budget_of
from vortex.codegen.fuse import Select
from vortex.codegen.memory import row_elements
from vortex.codegen.select import SelectConfig, Selector, SelectOutput
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

    def tensors(self) -> list[Tensor]:
        layers = (*self.entries, *self.scales, *self.states)
        return [self.valid, *(tensor for layer in layers for tensor in layer.values())]

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
    return storage


def set_width(built: Built, node: int, max_blocks: int) -> int:
    """Slots for the ids of a set that a selection makes, the current block included."""
    budget = budget_of(built.program, node)
    policy, layers = built.program.policy, built.program.shape.layers
    if budget is None:
        return max_blocks + 1
    budgets = {budget.text: budget}
    if node == built.program.indexer.result:
        budgets[policy.budget] = Budget.parse(policy.budget)
    tokens = max_blocks * policy.block_size
    most = max(
        each.most(tokens, policy.block_size, layer, layers)
        for each in budgets.values()
        for layer in range(layers)
    )
    reserved = policy.sink_blocks + policy.recent_blocks + 1
    return min(max(most, reserved), max_blocks + 1)


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
    lists_dense  whether `attended` has room for all blocks of every row that may be dense
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
    attended: SetMemory = field(init=False)
    lists_dense: bool = True
    planned: Any = None


def workspace(
    built: Built, requests: int, max_blocks: int, heads: Heads, blocks_per_page: int, device: Any
) -> Workspace:
    import torch

    layers = built.program.shape.layers
    # Rows of scores start on 16 bytes.
    capacity = -(-max(max_blocks, 1) // 16) * 16
    rows = requests * heads.kv
    options = {"dtype": torch.int32, "device": device}
    buffers = {}
    for buffer in built.plan.buffers:
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
    )
    for step in built.plan.steps:
        if isinstance(step, Select):
            made.sets[step.node] = _set_memory(built, step, made, heads, max_blocks, blocks_per_page, device)
            if step.final:
                made.attended = made.sets[step.node]
                if step.inner:
                    made.attended = _set_memory(built, step, made, heads, max_blocks, blocks_per_page, device)
    # A budget that covers a row's blocks has slots for them; other reasons to be dense know no bound but the longest.
    policy = built.program.policy
    by_budget = not policy.dense_layers and policy.dense_below == 0
    made.lists_dense = by_budget or made.attended.width > max_blocks
    return made


def _set_memory(
    built: Built,
    step: Select,
    made: Workspace,
    heads: Heads,
    max_blocks: int,
    blocks_per_page: int,
    device: Any,
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
    return SetMemory(step, Selector(config, made.requests, device), out, width, float(bound), take)  # type: ignore[arg-type]
