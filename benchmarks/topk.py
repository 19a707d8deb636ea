"""Times top-k with page translation on one GPU: ours, FlashInfer's and torch.topk.

Method: one CUDA graph holds the same call for several inputs, each with scores of its own, so that nothing
small is measured alone; the graph is replayed between events; the median is divided by the number of inputs.
Every selection is checked against torch.topk in the same run, before it is timed.

    python benchmarks/topk.py --out DIR [--quick] [--flashinfer-auto | --no-flashinfer] [--commit HASH]
    python benchmarks/topk.py --plot DIR/topk.json

Writes DIR/topk.json after each stage (a run that is cut off keeps what it has), topk.md and topk.png.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from topk_report import plot, table

POINTS = [
    (512, 32), (2048, 125), (2048, 512), (8192, 125), (8192, 512), (32768, 512), (32768, 2048), (131072, 32),
    (131072, 2048),
]  # fmt: skip
ROWS = [8, 128, 512]
HEADS = 8
INPUTS = 4
# A graph of as many calls shows what one costs inside of a model's; one of INPUTS also what a graph costs.
MANY = 12
DEVICE = "cuda"
REPLAYS = 20


def graph_time(calls: list[Any]) -> float:
    """Median microseconds of one call when all of them run in one CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    # The clock of an idle GPU takes a while to rise.
    began = time.time()
    while time.time() - began < 0.03:
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPLAYS)
    ]
    for start, end in marks:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return 1000 * statistics.median(start.elapsed_time(end) for start, end in marks) / len(calls)


class Problem:
    """Scores, tables and outputs of one point of the grid."""

    def __init__(self, rows: int, n: int, k: int, kind: str = "normal", inputs: int = INPUTS) -> None:
        import torch

        self.rows, self.n, self.k = rows, n, k
        self.requests = rows // HEADS
        generator = torch.Generator(device=DEVICE).manual_seed(rows + n + k)
        self.scores = [scores_of(kind, rows, n, generator) for _ in range(inputs)]
        self.page_table = torch.stack(
            [torch.randperm(n, generator=generator, device=DEVICE) for _ in range(self.requests)]
        )
        self.page_table = self.page_table.to(torch.int32)
        self.finished = torch.full((self.requests,), n, dtype=torch.int32, device=DEVICE)
        self.take = torch.full((self.requests,), k, dtype=torch.int32, device=DEVICE)
        # The current block needs a page too; its entry is read but not part of the comparison.
        self.table_and_current = torch.cat([self.page_table, self.page_table[:, :1]], dim=1).contiguous()

    def selector(self, launch: Any = None, recall: float | None = None) -> list[Any]:
        """One call per input; output buffers are kept on the problem as `outputs`."""
        import torch

        from vortex.codegen.select import SelectConfig, Selector, SelectOutput

        config = SelectConfig("top_k", self.n, self.k + 1, HEADS, recall=recall, seed=1)
        selector = Selector(config, self.requests, DEVICE, launch, overlap=True)
        shape = (self.requests, HEADS, self.k + 1)
        self.outputs = [
            SelectOutput(
                torch.empty(shape, dtype=torch.int32, device=DEVICE),
                torch.empty(shape[:2], dtype=torch.int32, device=DEVICE),
                torch.empty(shape, dtype=torch.int32, device=DEVICE),
            )
            for _ in self.scores
        ]
        tables = {"lengths": self.finished, "page_table": self.table_and_current}
        return [
            lambda scores=scores, out=out: selector.run(scores, self.finished, self.take, out, **tables)
            for scores, out in zip(self.scores, self.outputs, strict=True)
        ]

    def check(self, recall: float) -> float:
        """The worst row's share of winners; raises where ids, order, pages or (recall 1) values are wrong."""
        worst = 1.0
        for scores, out in zip(self.scores, self.outputs, strict=True):
            ids = out.ids.view(self.rows, -1)[:, : self.k].long()
            assert bool((out.counts == self.k + 1).all()), "counts"
            assert bool((ids[:, 1:] > ids[:, :-1]).all()) and bool((ids >= 0).all()), "ids ascend and differ"
            assert out.pool_blocks is not None
            table = self.page_table.repeat_interleave(HEADS, 0).long()
            assert bool((table.gather(1, ids) == out.pool_blocks.view(self.rows, -1)[:, : self.k]).all()), (
                "pages"
            )
            best = scores.topk(self.k).values
            values = scores.gather(1, ids)
            hits = (values >= best[:, -1:]).sum(1).min().item() / self.k
            worst = min(worst, hits)
            assert hits >= recall, f"recall {hits} below {recall}"
            if recall == 1:
                assert bool((values.sort(descending=True).values == best).all()), (
                    "values differ from torch.topk"
                )
        return worst


def scores_of(kind: str, rows: int, n: int, generator: Any) -> Any:
    import torch

    normal = torch.randn(rows, n, generator=generator, device=DEVICE)
    if kind == "uniform":
        return torch.rand(rows, n, generator=generator, device=DEVICE)
    if kind == "one bucket":
        return 1 + 0.245 * torch.rand(rows, n, generator=generator, device=DEVICE)
    if kind == "heavy tail":
        return normal.exp().pow(5)
    if kind == "outlier":
        normal[:, 7] = 1e30
    if kind == "ties":
        return normal.mul(4).round()
    if kind == "bf16 values":
        return normal.bfloat16().float()
    return normal


def launches(n: int, k: int) -> dict[str, Any]:
    """The launch variants to time at a point; `default` is what a Selector takes by itself."""
    from vortex.codegen.select_launch import Launch, LongLaunch, default_launch

    found: dict[str, Any] = {"default": None}
    default = default_launch(n, k, 128)
    if isinstance(default, LongLaunch):
        return found | {
            "half kept": replace(default, keep=default.keep // 2, finish_warps=default.finish_warps // 2),
            "wide tiles": replace(default, tile=8192, tiles=1, sift_warps=16),
            "longer segments": replace(default, tiles=2 * default.tiles),
        }
    return found | {
        "whole": replace(default, keep=0), "8 warps": replace(default, warps=8, registers=None),
        "128 bins": replace(default, bins=128), "512 bins": replace(default, bins=512),
        "kept": Launch(8, 8, 256, keep=512, maxima=2),
    }  # fmt: skip


def compile_one(task: tuple[int, int, str, float | None]) -> str:
    """Fills Triton's cache from a process of its own."""
    n, k, name, recall = task
    try:
        Problem(HEADS, n, k).selector(launches(n, k)[name], recall)[0]()
    except Exception as error:
        return f"{n} -> {k} {name}: {type(error).__name__}: {error}"[:300]
    return ""


def compile_all(quick: bool) -> None:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    tasks: list[tuple[int, int, str, float | None]]
    tasks = [
        (n, k, name, None) for n, k in POINTS for name in launches(n, k) if not quick or name == "default"
    ]
    tasks += [(n, k, "default", 0.97) for n, k in POINTS]
    with ProcessPoolExecutor(10, get_context("spawn")) as pool:
        print(*filter(None, pool.map(compile_one, tasks)), sep="\n", flush=True)


def time_ours(results: dict[str, Any], quick: bool, save: Any) -> None:
    for n, k in POINTS:
        for rows in ROWS:
            problem = Problem(rows, n, k)
            point = results["points"].setdefault(f"{rows} x {n} -> {k}", {})
            for name, launch in launches(n, k).items():
                if quick and name != "default":
                    continue
                try:
                    calls = problem.selector(launch)
                    for call in calls:
                        call()
                    problem.check(1.0)
                    point[f"ours {name}"] = graph_time(calls)
                except Exception as error:
                    # A variant that does not fit the device is a result too.
                    results["failed"].append(
                        f"{rows} x {n} -> {k} {name}: {type(error).__name__}: {error}"[:500]
                    )
            # What a launch and an empty row cost: nothing is loaded or searched.
            take, problem.take = problem.take, problem.take * 0
            point["nothing selected"] = graph_time(problem.selector())
            problem.take = take
            calls = problem.selector(None, recall=0.97)
            for call in calls:
                call()
            point["stochastic recall"] = problem.check(0.97)
            point["stochastic"] = graph_time(calls)
            if rows * n <= 512 * 32768:
                point["many ours"] = graph_time(Problem(rows, n, k, inputs=MANY).selector())
            point["torch.topk"] = graph_time([lambda s=s, k=k: s.topk(k) for s in problem.scores])
            best = min((us, name) for name, us in point.items() if name.startswith("ours"))
            times = (f"{a}: {b:.2f}" for a, b in point.items())
            print(f"{rows:4d} x {n:6d} -> {k:4d}", *times, "| best", best, flush=True)
            save()


def time_distributions(results: dict[str, Any], save: Any) -> None:
    for kind in ("normal", "uniform", "one bucket", "heavy tail", "outlier", "ties", "bf16 values"):
        for rows, n, k in ((128, 2048, 125), (128, 8192, 125), (128, 32768, 512)):
            problem = Problem(rows, n, k, kind)
            calls = problem.selector()
            for call in calls:
                call()
            problem.check(1.0)
            row = results["distributions"].setdefault(kind, {})
            row[f"{rows} x {n} -> {k}"] = graph_time(calls)
        print(kind, row, flush=True)
        save()


def flashinfer_calls(problem: Problem) -> dict[str, list[Any]]:
    import flashinfer
    import torch

    k = problem.k
    lengths = torch.full((problem.rows,), problem.n, dtype=torch.int32, device=DEVICE)
    request = torch.arange(problem.rows, dtype=torch.int32, device=DEVICE) // HEADS

    def transform(scores: Any) -> Any:
        return flashinfer.top_k_page_table_transform(
            scores, problem.page_table, lengths, k, row_to_batch=request
        )

    return {
        "top_k_page_table_transform": [partial(transform, scores) for scores in problem.scores],
        "top_k": [partial(flashinfer.top_k, scores, k) for scores in problem.scores],
    }


def time_flashinfer(results: dict[str, Any], quick: bool, save: Any) -> None:
    import flashinfer

    results["versions"]["flashinfer"] = flashinfer.__version__
    for n, k in POINTS:
        for rows in ROWS:
            problem = Problem(rows, n, k)
            point = results["points"].setdefault(f"{rows} x {n} -> {k}", {})
            for algorithm in (None,) if quick else (None, "multi_cta", "filtered"):
                os.environ.pop("FLASHINFER_TOPK_ALGO", None)
                if algorithm:
                    os.environ["FLASHINFER_TOPK_ALGO"] = algorithm
                for label, calls in flashinfer_calls(problem).items():
                    try:
                        point[f"flashinfer {label} {algorithm or 'auto'}"] = graph_time(calls)
                    except Exception as error:
                        results["failed"].append(
                            f"flashinfer {label} {algorithm} {rows} x {n}: {error}"[:300]
                        )
            os.environ.pop("FLASHINFER_TOPK_ALGO", None)
            if rows * n <= 512 * 32768:
                calls = flashinfer_calls(Problem(rows, n, k, inputs=MANY))["top_k_page_table_transform"]
                point["many flashinfer"] = graph_time(calls)
            print(rows, n, k, {a: round(b, 2) for a, b in point.items() if "flash" in a}, flush=True)
            save()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--quick", action="store_true", help="default launches alone")
    parser.add_argument("--no-flashinfer", action="store_true")
    parser.add_argument("--flashinfer-auto", action="store_true", help="its automatic choice alone")
    parser.add_argument("--compile-flashinfer", action="store_true", help="compile its module and stop")
    parser.add_argument("--commit", default="unknown", help="recorded in the results")
    parser.add_argument("--plot", type=Path, help="only draw the table and plot of a topk.json")
    options = parser.parse_args()
    if options.plot:
        stored = json.loads(options.plot.read_text())
        options.plot.with_suffix(".md").write_text(table(stored))
        plot(stored, options.plot.with_suffix(".png"))
        return 0
    if options.compile_flashinfer:
        for calls in flashinfer_calls(Problem(HEADS, 2048, 125)).values():
            calls[0]()
        return 0
    import torch
    import triton

    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "commit": options.commit,
        "inputs": INPUTS,
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "points": {},
        "distributions": {},
        "failed": [],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.time()

    def save() -> None:
        results["seconds"] = time.time() - began
        (options.out / "topk.json").write_text(json.dumps(results, indent=1))
        (options.out / "topk.md").write_text(table(results))

    # FlashInfer compiles its module for minutes, on the CPU: meanwhile ours are timed.
    compiling = None
    if not options.no_flashinfer:
        compiling = subprocess.Popen([sys.executable, __file__, "--compile-flashinfer"])
    compile_all(options.quick)
    print(f"compiled: {time.time() - began:.0f} s", flush=True)
    time_ours(results, options.quick, save)
    time_distributions(results, save)
    print(table(results), f"{time.time() - began:.0f} s", flush=True)
    if compiling is not None:
        compiling.wait()
        print(f"FlashInfer compiled: {time.time() - began:.0f} s", flush=True)
        time_flashinfer(results, options.quick or options.flashinfer_auto, save)
    try:
        plot(results, options.out / "topk.png")
    except ImportError:
        print("matplotlib is not installed here: run --plot on the JSON file where it is", flush=True)
    print(table(results), *results["failed"], f"{time.time() - began:.0f} s", sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
