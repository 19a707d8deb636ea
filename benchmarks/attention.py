"""Sparse decode attention on a GPU: our schedules, FlashInfer, and the dense kernels, in one run.

    python benchmarks/attention.py --output benchmarks/results/attention-h200.json

Method: one CUDA graph holds the same call for 12 layers with pools of their own, replayed 20 times; the
median, divided by 12. Each candidate is first checked against fp64. Default shape: 16 requests of 32,768
tokens, 32 query and 8 KV heads, head dim 128, bf16, blocks of 16, 125 attended; 45 GB of GPU memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vortex.attention.auto import device_name
from vortex.attention.flashinfer import DenseFlashInfer, FlashInferProvider
from vortex.attention.measure import copy_bandwidth, kv_bytes, made_up, time_in_graph
from vortex.attention.provider import Features, Provider, StepShape
from vortex.attention.reference import attend
from vortex.attention.triton_split import Schedule, TritonProvider, schedules
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.selection import Selection

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}


def first_sweep(shape: StepShape, processors: int) -> list[Schedule]:
    """Ways to cut a tile, with as many splits as give each multiprocessor `resident` programs."""
    ways = [  # tile, warps, stages, resident
        (16, 1, 3, (8, 10)),
        (16, 1, 4, (6, 7, 8)),
        (16, 1, 5, (5,)),
        (16, 1, 2, (12,)),
        (16, 2, 3, (6,)),
        (16, 2, 4, (6,)),
        (32, 2, 2, (5,)),
        (32, 2, 3, (5,)),
        (32, 2, 4, (4,)),
        (32, 4, 3, (4,)),
        (32, 4, 4, (4,)),
        (64, 4, 2, (4, 5)),
        (64, 4, 3, (2, 3)),
        (64, 4, 4, (2,)),
        (128, 8, 2, (2,)),
        (128, 8, 3, (1,)),
        (128, 4, 2, (2,)),
    ]
    plain = [Schedule(1, tile, stages, warps, ahead=True) for tile, warps, stages, _ in ways]
    residents = [residents for *_, residents in ways]
    plain += [Schedule(1, 64, 1), Schedule(1, 64, 2), Schedule(1, 16, 4, 1)]
    plain += [Schedule(1, 64, stages, swap=True, ahead=True) for stages in (2, 3)]
    residents += [(8,), (5, 8), (12,), (3,), (2,)]
    rows = shape.requests * shape.heads.kv
    tokens = shape.width * shape.block_size
    found = []
    for schedule, counts in zip(plain, residents, strict=True):
        for resident in counts:
            splits = min(round(resident * processors / rows - 0.2), -(-tokens // schedule.tile))
            found.append(replace(schedule, splits=max(1, splits)))
    return list(dict.fromkeys(found))


def second_sweep(best: list[Schedule]) -> list[Schedule]:
    """The best ways again: other numbers of splits, programmatic launch."""
    found = []
    for schedule in best:
        for splits in sorted({max(1, schedule.splits + change) for change in (-2, -1, 1, 2)}):
            found.append(replace(schedule, splits=splits))
        found.append(replace(schedule, pdl=True))
    return list(dict.fromkeys(found))


def compile_one(shape: StepShape, schedule: Schedule) -> str | None:
    """Runs in a process of its own and leaves the kernel in Triton's cache; returns what went wrong."""
    try:
        length = -(-(shape.width * shape.block_size) // 2048) * 2048
        batch, pools, selections, q = made_up(shape, length, shape.width, 1)
        planned = TritonProvider(schedule).plan(shape, Features())
        planned.run(q, pools[0], selections[0], batch, shape.heads.dim**-0.5)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return None


@dataclass
class Bench:
    """The inputs, the truth about layer 0, and what was found so far (written after every step)."""

    shape: StepShape
    length: int
    attended: int
    layers: int
    output: Path
    deadline: float
    found: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> None:
        shape = self.shape
        self.scale = shape.heads.dim**-0.5
        self.batch, self.pools, self.selections, self.q = made_up(
            shape, self.length, self.attended, self.layers
        )
        self.out = torch.empty_like(self.q)
        self.lse = torch.empty(self.q.shape[:2], device=self.q.device)
        self.truth, self.plain_error = self.judge(self.q, self.batch, self.selections[0])
        # Dense attention is judged by its first request.
        batch = replace(self.batch, lengths=self.batch.lengths[:1], page_table=self.batch.page_table[:1],
                        slots=self.batch.slots[:1])  # fmt: skip
        first = self.selections[0]
        every = Selection(first.ids[:1], first.counts[:1], torch.ones_like(first.dense[:1]), False)
        self.dense_truth, self.dense_plain_error = self.judge(self.q[:1], batch, every)

    def judge(self, q: Tensor, batch: Batch, selection: Selection) -> tuple[Tensor, float]:
        """Layer 0 in fp64, and the largest error of plain torch in the dtype of q."""
        layer = (q, self.pools[0], selection, batch, self.scale)
        truth = attend(*layer, compute=torch.float64)[0]
        plain = attend(*layer, compute=self.shape.q_dtype)[0]
        return truth, float((plain.double() - truth).abs().max())

    def bound(self, attended: int) -> float:
        """Microseconds to read K and V at the copy bandwidth of this run."""
        return kv_bytes(self.shape, attended) / self.found["copy_bytes_per_s"] * 1e6

    def note(self, label: str, entry: dict[str, Any]) -> None:
        self.found.setdefault("kernels", {})[label] = entry
        if "us" in entry:
            text = f"{entry['us']:8.2f} us  {entry['bounds']:.2f} bounds  error {entry['error']:.2f}"
        else:
            text = entry["failed"]
        print(f"{text}  {label}", flush=True)
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.output.write_text(json.dumps(self.found, indent=1))

    def measure(
        self, label: str, make_calls, truth: Tensor, plain_error: float, bound: float
    ) -> float | None:
        """Checks layer 0, then times all layers; the time, or None where it failed or time is up.

        make_calls: () -> one call a layer, each of which writes `self.out`.
        """
        if time.monotonic() > self.deadline:
            return None
        try:
            calls = make_calls()
            self.out.fill_(torch.nan)
            calls[0]()
            ratio = float((self.out[: len(truth)].double() - truth).abs().max()) / plain_error
            if not ratio <= 2:
                raise ArithmeticError(f"error {ratio:.3g} times that of plain torch in {self.shape.q_dtype}")
            timing = time_in_graph(calls)
        except Exception as error:
            self.note(label, {"failed": f"{type(error).__name__}: {str(error)[:300]}"})
            return None
        self.note(
            label, vars(timing) | {"us": timing.median, "bounds": timing.median / bound, "error": ratio}
        )
        return timing.median

    def sparse(self, label: str, provider: Provider) -> float | None:
        def calls():
            planned = provider.plan(self.shape, Features())
            planned.update([self.attended] * self.shape.requests)
            return [
                lambda pool=pool, selection=selection: planned.run(
                    self.q, pool, selection, self.batch, self.scale, self.out, self.lse
                )
                for pool, selection in zip(self.pools, self.selections, strict=True)
            ]

        return self.measure(label, calls, self.truth, self.plain_error, self.bound(self.attended))

    def dense(self, tensor_cores: bool) -> float | None:
        def calls():
            lengths = [self.length] * self.shape.requests
            kernel = DenseFlashInfer(self.batch, lengths, self.shape.q_dtype, self.shape.kv_dtype, self.scale,
                                     tensor_cores)  # fmt: skip
            return [lambda pool=pool: kernel.run(self.q, pool, self.batch, self.out) for pool in self.pools]

        label = f"dense: flashinfer, tensor cores {'on' if tensor_cores else 'off'}"
        bound = self.bound(-(-self.length // self.shape.block_size))
        return self.measure(label, calls, self.dense_truth, self.dense_plain_error, bound)

    def sweep(self, choices: list[Schedule], workers: ProcessPoolExecutor) -> list[tuple[float, Schedule]]:
        """Compiles all in parallel, then times one after the other; fastest first."""
        wrong = list(workers.map(compile_one, [self.shape] * len(choices), choices))
        times = []
        for schedule, failed in zip(choices, wrong, strict=True):
            if failed is not None:
                self.note(f"triton: {schedule}", {"failed": failed})
                continue
            measured = self.sparse(f"triton: {schedule}", TritonProvider(schedule))
            if measured is not None:
                times.append((measured, schedule))
        return sorted(times, key=lambda pair: pair[0])


def provenance(commit: str) -> dict[str, Any]:
    found: dict[str, Any] = {"device": device_name(torch.device("cuda"))}
    for package in ("torch", "triton", "flashinfer-python"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    run = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    found["commit"] = commit or run.stdout.strip() or None
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("requests", 16), ("context", 32768), ("blocks", 125), ("block-size", 16),
                          ("query-heads", 32), ("kv-heads", 8), ("dim", 128), ("layers", 12), ("workers", 12),
                          ("seconds", 270)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--kv-dtype", choices=DTYPES, default=None)
    parser.add_argument("--output", type=Path, default=Path("attention.json"))
    parser.add_argument("--commit", default="", help="recorded where there is no git")
    parser.add_argument("--no-sweep", action="store_true", help="the default schedules alone")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    start = time.monotonic()
    device = torch.device("cuda", torch.cuda.current_device())
    heads = Heads(options.query_heads, options.kv_heads, options.dim)
    blocks = -(-options.context // options.block_size)
    shape = StepShape(
        options.requests, heads, options.block_size, options.block_size, options.blocks, blocks,
        DTYPES[options.dtype], DTYPES[options.kv_dtype or options.dtype], device,
    )  # fmt: skip
    bench = Bench(
        shape, options.context, options.blocks, options.layers, options.output, start + options.seconds
    )
    bench.found = provenance(options.commit) | {"shape": str(shape), "context": options.context}
    bench.found["copy_bytes_per_s"] = copy_bandwidth(device)
    torch.cuda.empty_cache()
    bench.prepare()
    bench.found |= {"bound_us": bench.bound(options.blocks), "dense_bound_us": bench.bound(blocks)}
    print(json.dumps(bench.found, indent=1), flush=True)

    processors = torch.cuda.get_device_properties(device).multi_processor_count
    if options.no_sweep:
        for schedule in schedules(shape, processors):
            bench.sparse(f"triton: {schedule}", TritonProvider(schedule))
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.workers, mp_context=context) as workers:
            ranked = bench.sweep(first_sweep(shape, processors), workers)
            ranked += bench.sweep(second_sweep([schedule for _, schedule in ranked[:4]]), workers)
    print(f"{time.monotonic() - start:.0f} s: ours measured", flush=True)
    bench.dense(tensor_cores=True)
    for tensor_cores in (True, False):
        label = f"flashinfer: tensor cores {'on' if tensor_cores else 'off'}"
        bench.sparse(label, FlashInferProvider(tensor_cores))
    bench.dense(tensor_cores=False)
    timed = {label: entry["us"] for label, entry in bench.found["kernels"].items() if "us" in entry}
    bench.found["fastest"] = dict(sorted(timed.items(), key=lambda item: item[1])[:8])
    bench.output.write_text(json.dumps(bench.found, indent=1))
    print(f"{time.monotonic() - start:.0f} s", json.dumps(bench.found["fastest"], indent=1))


if __name__ == "__main__":
    main()
