"""Runs forward_cache: per layer after a prefill, for all layers at once at the start of a decode step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vortex.codegen.launch import Kernels
from vortex.codegen.storage import DeviceStorage, Workspace
from vortex.vtensor.batch import Batch, BatchError
from vortex.vtensor.pool import KVPool

if TYPE_CHECKING:
    from torch import Tensor

STEP_PROGRAMS = 16384
"""Programs of a step's summaries: nearly all find nothing to do, but a prompt's blocks all come at once."""

LARGEST_GRID = 65535
"""Thread blocks along the second axis of a grid."""


def summarise(kernels: Kernels, storage: DeviceStorage, layer: int, pool: KVPool, block_ids: Tensor) -> None:
    """Writes the entries of pool blocks of one layer; `block_ids`: int64 [m]."""
    if not kernels.built.program.entries or not block_ids.numel():
        return
    source = kernels.built.kernel("summarise")
    values = kernels.values(source, storage, layer, None, pool, None)
    kernel = kernels.function(source, "summarise_blocks")
    heads = storage.heads.kv
    for ids in block_ids.split(LARGEST_GRID):
        kernel[(heads, len(ids))](ids, *values, HEADS=heads, num_warps=source.schedule.warps)


def bind_layers(kernels: Kernels, storage: DeviceStorage, pools: list[KVPool]) -> None:
    """Makes the table of addresses through which one kernel summarises all layers. Once, before capture."""
    import torch

    if not kernels.built.program.entries:
        return
    strides = {tuple(pool.tensors[name].stride() for name in sorted(pool.tensors)) for pool in pools}
    if len(strides) > 1:
        raise BatchError("pools: layers of different strides cannot be summarised by one kernel")
    arguments = kernels.built.kernel("summarise").arguments
    pointers = [each for each in arguments if each.kind != "stride"]
    rows = [
        [kernels.value(each, storage, layer, None, pool).data_ptr() for each in pointers]
        for layer, pool in enumerate(pools)
    ]
    storage.layer_table = torch.tensor(rows, dtype=torch.int64, device=pools[0].tensors["k"].device)


def parts_of(programs: int, on_gpu: bool) -> int:
    """Programs among which the blocks of a (request, KV head, layer) are shared, for that many of these."""
    return min(max(STEP_PROGRAMS // max(programs, 1), 1), 16) if on_gpu else 1


def summarise_step(
    kernels: Kernels, storage: DeviceStorage, pool: KVPool, batch: Batch, space: Workspace
) -> None:
    """Entries of every finished block of the batch that is not valid, in all layers; marks the blocks valid."""
    if not kernels.built.program.entries:
        return
    if storage.layer_table is None:
        raise BatchError("summarise_step: call bind_layers with the pools of all layers first")
    source = kernels.built.kernel("summarise")
    common = (batch.lengths, batch.page_table, batch.page_table.stride(0), storage.valid, space.repair)
    sizes = {
        "BLOCK_SIZE": kernels.built.program.policy.block_size,
        "BLOCKS_PER_PAGE": batch.blocks_per_page,
    }
    kernels.function(source, "scan_step")[(batch.requests,)](*common, **sizes, TILE=1024, num_warps=4)
    strides = [
        kernels.value(each, storage, 0, None, pool) for each in source.arguments if each.kind == "stride"
    ]
    heads, layers = storage.heads.kv, storage.layer_table.shape[0]
    parts = parts_of(heads * batch.requests * layers, batch.lengths.is_cuda)
    kernels.function(source, "summarise_step")[heads * parts, batch.requests, layers](
        *common,
        storage.layer_table,
        *strides,
        HEADS=heads,
        PARTS=parts,
        **sizes,
        num_warps=source.schedule.warps,
    )
    kernels.function(source, "mark_step")[(batch.requests,)](*common, **sizes, TILE=1024, num_warps=4)
