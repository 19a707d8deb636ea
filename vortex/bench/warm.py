"""Compiles the kernels of a benchmark's points before anything is timed, in processes beside one another."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vortex.bench.sweep import Point

MOST_PROCESSES = 12
PAGES = 16
"""Pages of a request that kernels are compiled with: few, but as divisible as any real number, which compiled code
depends on."""


def compile_kernels(todo: Sequence[Point], kv: str, entries: str | None) -> list[Any]:
    """Started processes; join them before a measurement. What fails in one shows itself when it is measured."""
    context = multiprocessing.get_context("spawn")
    count = max(1, min(MOST_PROCESSES, (os.cpu_count() or 1) - 1, len(todo)))
    shares = [list(todo[number::count]) for number in range(count)]
    jobs: list[tuple[Callable[..., None], tuple[Any, ...]]] = [(_compile_flashinfer, (todo[0], kv))]
    jobs += [(_compile_points, (share, kv, entries)) for share in shares]
    started = [context.Process(target=job, args=arguments, daemon=True) for job, arguments in jobs]
    for process in started:
        process.start()
    return started


def _compile_points(share: Sequence[Point], kv: str, entries: str | None) -> None:
    import torch

    from vortex.bench.point import Bench

    bench = Bench(torch.device("cuda", torch.cuda.current_device()), 1.0, 0, kv, entries, say=lambda _: None)
    for point in share:
        bench.compile(point.program, point.batch, point.context, PAGES)
    torch.cuda.synchronize()


def _compile_flashinfer(point: Point, kv: str) -> None:
    """FlashInfer compiles its kernels for a minute where they come first."""
    import torch

    from vortex.attention.dense import dense_kernels
    from vortex.attention.provider import Features
    from vortex.attention.rig import Rig
    from vortex.bench.point import Bench

    bench = Bench(torch.device("cuda", torch.cuda.current_device()), 1.0, 0, kv, say=lambda _: None)
    length = PAGES * max(point.program.policy.block_size, 16)
    shape = bench.shape(point.program, 1, length)
    rig = Rig(None, shape, length)
    for label in dense_kernels(shape, Features()):
        if label.startswith("flashinfer"):
            rig.dense(label).run(rig.q, rig.pools[0], rig.batch, rig.out)
    torch.cuda.synchronize()
