"""Kernel times as a model sees them: several calls in one CUDA graph, each on memory of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


WARM_SECONDS = 0.02


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
    import torch

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
    # The clock of an idle GPU takes a while to rise.
    began = time.monotonic()
    while time.monotonic() - began < WARM_SECONDS:
        graph.replay()
        torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * replays)]
    for start, end in zip(events[::2], events[1::2], strict=True):
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    pairs = zip(events[::2], events[1::2], strict=True)
    times = [1000 * start.elapsed_time(end) / len(calls) for start, end in pairs]
    return Timing(median(times), min(times), max(times))


def copy_bandwidth(device: torch.device, size: int = 4 * 2**30) -> float:
    """Bytes a second, read and written, of a device-to-device copy."""
    import torch

    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    # A kernel copies; the copy engine that `copy_` uses in a graph reaches two thirds of its rate.
    return 2 * size / (time_in_graph([lambda: torch.neg(source, out=target)], replays=10).median * 1e-6)
