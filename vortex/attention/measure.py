"""Kernel times as a model sees them, and made-up inputs to measure with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vortex.attention.provider import StepShape
from vortex.codegen.timing import Timing, copy_bandwidth, time_in_graph
from vortex.vtensor.batch import Batch
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection


def kv_bytes(shape: StepShape, attended: int) -> int:
    """Bytes of K and V that one layer reads where every row attends `attended` blocks."""
    rows = shape.requests * shape.heads.kv
    return 2 * rows * attended * shape.block_size * shape.heads.dim * shape.kv_dtype.itemsize


def made_up(shape: StepShape, length: int, attended: int, layers: int,
            seed: int = 0) -> tuple[Batch, list[KVPool], list[Selection], Tensor]:  # fmt: skip
    """Requests of one length over pools in random page order, with random distinct blocks, the current one
    last; pools and selections per layer. q [requests, query heads, dim]."""
    generator = torch.Generator(shape.device).manual_seed(seed)
    heads, device = shape.heads, shape.device
    pages = -(-length // shape.page_size)
    order = torch.randperm(shape.requests * pages, generator=generator, device=device, dtype=torch.int32)
    batch = Batch(
        torch.full((shape.requests,), length, dtype=torch.int32, device=device),
        order.view(shape.requests, pages),
        torch.arange(shape.requests, dtype=torch.int32, device=device),
        shape.page_size, shape.block_size, heads,
    )  # fmt: skip
    finished = (length - 1) // shape.block_size
    rows = (shape.requests, heads.kv)
    pools, selections = [], []
    for _ in range(layers):
        size = (shape.requests * pages * shape.page_size, heads.kv, heads.dim)
        k, v = (random_values(size, shape.kv_dtype, generator, device) for _ in range(2))
        pools.append(KVPool({"k": k, "v": v}, shape.page_size))
        keys = torch.rand(*rows, finished, generator=generator, device=device)
        ids = torch.full((*rows, shape.width), -1, dtype=torch.int32, device=device)
        ids[..., : attended - 1] = keys.argsort(-1)[..., : attended - 1].sort(-1).values.to(torch.int32)
        ids[..., attended - 1] = finished
        counts = torch.full(rows, attended, dtype=torch.int32, device=device)
        dense = torch.zeros(shape.requests, dtype=torch.bool, device=device)
        selections.append(Selection(ids, counts, dense, shape.lists_dense))
    q = random_values((shape.requests, heads.query, heads.dim), shape.q_dtype, generator, device)
    return batch, pools, selections, q


def random_values(size: Sequence[int], dtype: torch.dtype, generator: torch.Generator,
                  device: torch.device) -> Tensor:  # fmt: skip
    """Normal values, filled in pieces where the type has no generator of its own (8-bit floats)."""
    if dtype.itemsize > 1:
        return torch.randn(*size, dtype=dtype, device=device, generator=generator)
    out = torch.empty(*size, dtype=dtype, device=device)
    for piece in out.split(2**16):
        piece.copy_(torch.randn(piece.shape, dtype=torch.float16, device=device, generator=generator))
    return out


__all__ = ["Timing", "copy_bandwidth", "kv_bytes", "made_up", "time_in_graph"]
