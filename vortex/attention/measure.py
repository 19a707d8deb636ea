"""Kernel times as a model sees them, and made-up inputs to measure with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from vortex.attention.provider import StepShape
from vortex.vtensor.batch import Batch
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: median, fastest and slowest replay."""

    median: float
    low: float
    high: float


def time_in_graph(calls: Sequence[Callable[[], object]], replays: int = 20) -> Timing:
    """Captures the calls, one a layer, in one CUDA graph, replays it, and divides by their number.

    Give each call memory of its own, more than the L2 cache in all: nothing is then found there. Events
    around a graph of many calls hide the launch gap, as a model's step does.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(3):
        graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * replays)]
    for start, end in zip(events[::2], events[1::2], strict=True):
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    pairs = zip(events[::2], events[1::2], strict=True)
    times = [1000 * start.elapsed_time(end) / len(calls) for start, end in pairs]
    return Timing(median(times), min(times), max(times))


def kv_bytes(shape: StepShape, attended: int) -> int:
    """Bytes of K and V that one layer reads where every row attends `attended` blocks."""
    rows = shape.requests * shape.heads.kv
    return 2 * rows * attended * shape.block_size * shape.heads.dim * shape.kv_dtype.itemsize


def copy_bandwidth(device: torch.device, size: int = 4 * 2**30) -> float:
    """Bytes a second, read and written, of a device-to-device copy."""
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    # A kernel copies; the copy engine that `copy_` uses in a graph reaches two thirds of its rate.
    return 2 * size / (time_in_graph([lambda: torch.neg(source, out=target)], replays=10).median * 1e-6)


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
