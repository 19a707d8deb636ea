"""Times top-k with page translation on one GPU: ours, FlashInfer's and torch.topk.

Method: one CUDA graph holds the same call for several inputs, each with scores of its own, so that nothing
small is measured alone. The graphs of all sides of a point are replayed in turns, so that a change of clock
hits them alike; the median replay is divided by the number of inputs. Every selection of ours is checked against
torch.topk in the same run, before it is timed.

    python benchmarks/topk.py --out DIR [--no-variants] [--no-flashinfer] [--commit HASH]
    python benchmarks/topk.py --compile-flashinfer     (minutes, on the CPU; may run before or beside the other)
    python benchmarks/topk.py --plot DIR/topk.json

First our launches are timed against each other, while FlashInfer compiles; then the default, the best launch,
stochastic top-k, torch.topk and FlashInfer against each other: these are the figures of the table. Writes
DIR/topk.json after each point (a run that is cut off keeps what it has), topk.md and topk.png.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from topk_problem import DEVICE, HEADS, INPUTS, Problem
from topk_report import plot, table

POINTS = [
    (512, 32), (2048, 125), (2048, 512), (8192, 125), (8192, 512), (32768, 512), (32768, 2048), (131072, 32),
    (131072, 2048),
]  # fmt: skip
ROWS = [8, 128, 512]
# A graph of as many calls shows what one costs inside of a model's; one of INPUTS also what a graph costs.
MANY = 12
KINDS = ("normal", "uniform", "one bucket", "heavy tail", "outlier", "ties", "bf16 values")
# Turns of a graph, and replays of a turn.
ROUNDS = 6
REPLAYS = 5
WARM_SECONDS = 0.05
RECALL = 0.97

# Graphs of the sides of a point; their calls keep alive what they read and write.
Graphs = dict[str, tuple[Any, list[Any]]]


def graph_of(calls: list[Any]) -> Any:
    """A CUDA graph of all calls, each of which ran before."""
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
    return graph


def times(graphs: Graphs) -> dict[str, float]:
    """Median microseconds of one call of each graph, replayed in turns."""
    import torch

    # The clock of an idle GPU takes a while to rise.
    began = time.time()
    while time.time() - began < WARM_SECONDS:
        for graph, _ in graphs.values():
            graph.replay()
        torch.cuda.synchronize()
    marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, (graph, _) in graphs.items():
            graph.replay()
            for _ in range(REPLAYS):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                graph.replay()
                end.record()
                marks[name].append((start, end))
        torch.cuda.synchronize()
    return {
        name: 1000 * statistics.median(start.elapsed_time(end) for start, end in marks[name]) / len(calls)
        for name, (_, calls) in graphs.items()
    }


def launches(n: int, k: int, rows: int) -> dict[str, Any]:
    """The launches to time at a point; `default` is what a Selector takes by itself."""
    from vortex.codegen.select_launch import Launch, LongLaunch, default_launch, finish_warps

    default = default_launch(n, k, rows)
    found: dict[str, Any] = {"default": default}
    if isinstance(default, LongLaunch):
        halves = {"half kept": default.keep // 2, "twice kept": default.keep * 2}
        for name, keep in halves.items():
            if 1024 <= keep <= 16384 and keep > k:
                found[name] = replace(default, keep=keep, finish_warps=finish_warps(keep))
        if default.tile == 2048:
            found["tiles of 1024"] = replace(
                default, tile=1024, each=8, sift_warps=4, tiles=2 * default.tiles
            )
        found["longer segments"] = replace(default, tiles=2 * default.tiles)
    elif isinstance(default, Launch):
        found["whole"] = replace(default, keep=0)
        found["512 bins"] = replace(default, bins=512)
    return found


def compile_one(task: tuple[int, int, Any, float | None]) -> str:
    """Fills Triton's cache from a process of its own."""
    n, k, launch, recall = task
    try:
        Problem(HEADS, n, k, inputs=1).selector(launch, recall)[0]()
    except Exception as error:
        return f"{n} -> {k} {launch}: {type(error).__name__}: {error}"[:300]
    return ""


def compile_all(variants: bool) -> None:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    tasks: list[tuple[int, int, Any, float | None]] = []
    for n, k in POINTS:
        for rows in ROWS:
            for name, launch in launches(n, k, rows).items():
                wanted = (None, RECALL) if name == "default" else (None,) if variants else ()
                tasks += [(n, k, launch, recall) for recall in wanted if (n, k, launch, recall) not in tasks]
    with ProcessPoolExecutor(12, get_context("spawn")) as pool:
        print(*filter(None, pool.map(compile_one, tasks)), sep="\n", flush=True)


class Run:
    """What is measured, where it is written, and what failed."""

    def __init__(self, out: Path, results: dict[str, Any]) -> None:
        self.out, self.results = out, results
        self.began = time.time()
        out.mkdir(parents=True, exist_ok=True)

    def save(self) -> None:
        self.results["seconds"] = time.time() - self.began
        (self.out / "topk.json").write_text(json.dumps(self.results, indent=1))
        (self.out / "topk.md").write_text(table(self.results))

    def note(self, text: str) -> None:
        print(f"{time.time() - self.began:4.0f} s  {text}", flush=True)

    def graph(self, what: str, calls: Callable[[], list[Any]]) -> Graphs:
        """The graph of a side by its name; none where it fails: what does not fit a device is a result too."""
        name = what.rpartition(": ")[2]
        try:
            made = calls()
            return {name: (graph_of(made), made)}
        except Exception as error:
            self.results["failed"].append(f"{what}: {type(error).__name__}: {error}"[:500])
            return {}


def checked(problem: Problem, launch: Any = None, recall: float | None = None) -> list[Any]:
    calls = problem.selector(launch, recall)
    for call in calls:
        call()
    problem.check(recall or 1.0)
    return calls


def points() -> Iterator[tuple[str, int, int, int]]:
    for n, k in POINTS:
        for rows in ROWS:
            yield f"{rows} x {n} -> {k}", rows, n, k


def time_launches(run: Run) -> None:
    """Our launches against each other."""
    for point, rows, n, k in points():
        problem = Problem(rows, n, k)
        graphs: Graphs = {}
        for name, launch in launches(n, k, rows).items():
            graphs |= run.graph(f"{point}: {name}", partial(checked, problem, launch))
        run.results["launches"][point] = found = times(graphs)
        run.note(f"{point} " + ", ".join(f"{name} {us:.2f}" for name, us in found.items()))
        run.save()


def time_sides(run: Run, flashinfer: bool) -> None:
    """Default, best launch, stochastic, torch.topk and FlashInfer against each other."""
    for point, rows, n, k in points():
        problem = Problem(rows, n, k)
        graphs = run.graph(f"{point}: exact", partial(checked, problem))
        timed = run.results["launches"].get(point, {})
        best = min(timed, key=lambda name: timed[name], default="default")
        if best != "default":
            launch = launches(n, k, rows)[best]
            graphs |= run.graph(f"{point}: exact, {best}", partial(checked, problem, launch))
        if problem.samples(RECALL):
            graphs |= run.graph(f"{point}: stochastic", partial(checked, problem, None, RECALL))
        graphs |= run.graph(f"{point}: torch.topk", partial(torch_calls, problem))
        for algorithm in (None, "multi_cta", "filtered") if flashinfer else ():
            os.environ.pop("FLASHINFER_TOPK_ALGO", None)
            if algorithm:
                os.environ["FLASHINFER_TOPK_ALGO"] = algorithm
            for label, calls in flashinfer_calls(problem).items():
                graphs |= run.graph(
                    f"{point}: flashinfer {label} {algorithm or 'auto'}", partial(list, calls)
                )
        os.environ.pop("FLASHINFER_TOPK_ALGO", None)
        found = times(graphs)
        if rows * n <= 512 * 32768:
            many = Problem(rows, n, k, inputs=MANY)
            graphs = run.graph(f"{point}: many exact", partial(checked, many))
            if flashinfer:
                fused = flashinfer_calls(many)["top_k_page_table_transform"]
                graphs |= run.graph(f"{point}: many flashinfer", partial(list, fused))
            found |= times(graphs)
        run.results["points"][point] = found
        run.note(f"{point} " + ", ".join(f"{name} {us:.2f}" for name, us in found.items()))
        run.save()


def time_distributions(run: Run) -> None:
    for rows, n, k in ((128, 2048, 125), (128, 8192, 125), (128, 32768, 512), (128, 32768, 2048)):
        graphs: Graphs = {}
        for kind in KINDS:
            calls = partial(checked, Problem(rows, n, k, kind))
            graphs |= run.graph(f"{rows} x {n} -> {k}: {kind}", calls)
        for kind, us in times(graphs).items():
            run.results["distributions"].setdefault(kind, {})[f"{rows} x {n} -> {k}"] = us
        run.save()
    run.note(str(run.results["distributions"]))


def torch_calls(problem: Problem) -> list[Any]:
    return [partial(scores.topk, problem.k) for scores in problem.scores]


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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--no-variants", action="store_true", help="default launches alone")
    parser.add_argument("--no-flashinfer", action="store_true")
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

    versions = {"torch": torch.__version__, "triton": triton.__version__}
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "commit": options.commit, "inputs": INPUTS, "versions": versions,
        "launches": {}, "points": {}, "distributions": {}, "failed": [],
    }  # fmt: skip
    run = Run(options.out, results)
    compiling = None
    if not options.no_flashinfer:
        compiling = subprocess.Popen([sys.executable, __file__, "--compile-flashinfer"])
    compile_all(not options.no_variants)
    run.note("compiled")
    if not options.no_variants:
        time_launches(run)
    time_distributions(run)
    if compiling is not None:
        compiling.wait()
        import flashinfer

        versions["flashinfer"] = flashinfer.__version__
        run.note("FlashInfer compiled")
    time_sides(run, compiling is not None)
    try:
        plot(results, options.out / "topk.png")
    except ImportError:
        run.note("matplotlib is not installed here: run --plot on the JSON file where it is")
    print(table(results), *results["failed"], sep="\n", flush=True)
    run.note("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
