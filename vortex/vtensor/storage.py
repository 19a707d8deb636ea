"""The memory of the reference executor: entries by pool block, states and kept selections by request slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vortex.dsl.ir import Entry, Program, State
from vortex.vtensor.batch import Heads
from vortex.vtensor.layout import Layout, VTensor
from vortex.vtensor.reuse import Kept

if TYPE_CHECKING:
    import torch


@dataclass
class ReferenceStorage:
    """Entries and states of all layers.

    entries  per layer, name -> paged vTensor [pool blocks, kv heads, axes…] of values already rounded to
             their storage dtype, held as fp32, int64 or bool
    states   per layer, name -> state vTensor [slots, kv heads, (max blocks,) other axes…], fp32 or bool
    valid    int8 [pool blocks]: entries are those of the tokens that lie there now, in every layer
    kept     selections for later steps and layers, where the flow reuses them
    """

    heads: Heads
    valid: torch.Tensor
    entries: list[dict[str, VTensor]] = field(default_factory=list)
    states: list[dict[str, VTensor]] = field(default_factory=list)
    kept: Kept | None = None
    max_blocks: int = 0

    def bytes(self) -> int:
        tensors = [self.valid]
        tensors += [each.data for layer in (*self.entries, *self.states) for each in layer.values()]
        if self.kept is not None:
            tensors += [self.kept.chosen, self.kept.held]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def entry_tensor(entry: Entry, pool_blocks: int, heads: Heads, device: torch.device) -> VTensor:
    """Starts as garbage (NaN where the dtype has one): reading it before it is written shows."""
    import torch

    dtype = {"int32": torch.int64, "bool": torch.bool}.get(entry.storage, torch.float32)
    shape = (pool_blocks, heads.kv, *(axis.size or 0 for axis in entry.axes))
    fill = {torch.int64: -1, torch.bool: True}.get(dtype, float("nan"))
    data = torch.full(shape, fill, dtype=dtype, device=device)
    return VTensor(data, Layout.PAGED, tuple(axis.name for axis in entry.axes))


def state_tensor(state: State, slots: int, max_blocks: int, heads: Heads, device: torch.device) -> VTensor:
    """Starts at the state's default; an axis `block` comes first, with room for `max_blocks`."""
    import torch

    ragged = [axis for axis in state.axes if axis.size is None]
    rest = [axis for axis in state.axes if axis.size is not None]
    shape = (slots, heads.kv, *([max_blocks] if ragged else []), *(axis.size or 0 for axis in rest))
    dtype = torch.bool if state.dtype == "bool" else torch.float32
    data = torch.full(shape, state.default, dtype=dtype, device=device)
    return VTensor(data, Layout.STATE, tuple(axis.name for axis in (*ragged, *rest)))


def allocate(
    program: Program,
    layers: int,
    pool_blocks: int,
    slots: int,
    max_blocks: int,
    heads: Heads,
    device: torch.device,
) -> ReferenceStorage:
    import torch

    return ReferenceStorage(
        heads,
        torch.zeros(pool_blocks, dtype=torch.int8, device=device),
        [
            {e.name: entry_tensor(e, pool_blocks, heads, device) for e in program.entries}
            for _ in range(layers)
        ],
        [
            {s.name: state_tensor(s, slots, max_blocks, heads, device) for s in program.states}
            for _ in range(layers)
        ],
        Kept.allocate(program.policy, slots, layers, heads.kv, max_blocks, device),
        max_blocks,
    )


def entry_dtype(kv: torch.dtype) -> torch.dtype:
    """How an entry without a Cast is stored: in the KV dtype, or bf16 where that has 8 bits."""
    import torch

    return torch.bfloat16 if kv.itemsize == 1 else kv
