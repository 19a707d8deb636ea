"""The whole sparse step of a layer under other schedules: scoring, attention, launches that overlap or do not.

Every choice is timed as a step (select, attend, merge) at 16 requests of 32,768 tokens, by the method of `vortex
bench`, one factor changed at a time from the defaults; then the best ones together.

    python benchmarks/step.py --out DIR [--commit HASH] [--seconds 120]
    python benchmarks/step.py --out DIR --sweep --seconds 320 [--points 16x65536 64x16384 ...]

With --sweep instead what `vortex bench` measures by default, for machines without the packages of a command line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vortex.attention.measure import copy_bandwidth
from vortex.attention.provider import StepShape
from vortex.attention.rig import Rig
from vortex.attention.step import StepOptions, fixed_counts
from vortex.attention.triton_split import Schedule as AttentionSchedule
from vortex.attention.triton_split import TritonProvider, default_schedule
from vortex.bench.layer import layer_bytes
from vortex.bench.sweep import Sweep, points, provenance, run
from vortex.codegen.compiled import CompiledFlow
from vortex.codegen.schedule import Schedule
from vortex.dsl.ir import Program, Shape
from vortex.dsl.load import trace_file
from vortex.vtensor.batch import Heads

REQUESTS, LENGTH, BLOCK, BUDGET, MEMORY = 16, 32768, 16, 126, 48 * 2**30
BATCHES, CONTEXTS = (1, 4, 16, 64), [4096 << power for power in range(6)]
ROOT = Path(__file__).parent.parent
Choice = dict[str, Any]


def attention_choices(default: AttentionSchedule) -> Iterator[Choice]:
    for splits in (6, 7, 9, 10):
        yield {"attention": replace(default, splits=splits)}
    yield {"attention": replace(default, stages=4, splits=6)}
    yield {"attention": replace(default, pdl=False)}
    for splits in (2, 3):
        yield {"attention": AttentionSchedule(splits, 64, 3, 4, ahead=True, swap=True, pdl=True)}
    yield {"attention": AttentionSchedule(4, 32, 3, 4, ahead=True, pdl=True)}


def scoring_choices(elements: int) -> Iterator[Choice]:
    for tile, warps in ((16, 1), (32, 1), (32, 2), (64, 2), (64, 4)):
        for stages, workers in ((1, 64), (2, 64), (2, 32), (2, 16)):
            yield {"scoring": Schedule(tile, warps, elements, stages, workers)}


class Study:
    """One flow over one set of inputs; results are written after each choice."""

    def __init__(self, program: Program, result: dict[str, Any], path: Path, deadline: float) -> None:
        self.program, self.path, self.result, self.deadline = program, path, result, deadline
        heads, blocks = Heads(32, 8, 128), LENGTH // BLOCK
        self.shape = StepShape(REQUESTS, heads, BLOCK, BLOCK, BUDGET, blocks, torch.bfloat16, torch.bfloat16,
                               torch.device("cuda"), fixed_counts(program))  # fmt: skip
        self.flow = CompiledFlow(program)
        self.rig = Rig(self.flow, self.shape, LENGTH, MEMORY)
        read = layer_bytes(program, REQUESTS, LENGTH)
        self.bytes = read.step
        self.bound = read.step / result["copy_bytes_per_s"] * 1e6
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        self.attention = default_schedule(self.shape, processors)
        self.elements = next(each.schedule.elements for each in self.flow.built.kernels if each.step == 0)
        self.expected: torch.Tensor | None = None

    def time(self, choice: Choice) -> float | None:
        if time.monotonic() > self.deadline:
            return None
        rig = self.rig
        schedules = {0: choice["scoring"]} if "scoring" in choice else None
        form = choice.get("form", "split")
        rig.flow = CompiledFlow(
            self.program, schedules=schedules, weights=self.flow.kernels.weights, form=form
        )
        if not choice.get("overlap", True):
            rig.flow.pdl, rig.flow.launch = False, {}
        provider = TritonProvider(choice.get("attention", self.attention))
        row: dict[str, Any] = {name: str(value) for name, value in choice.items()}
        try:
            step = rig.step(StepOptions(provider=provider, dense_below=0))
            step.run_layer(0, rig.q, rig.out)
            self.expected = rig.out.clone() if self.expected is None else self.expected
            torch.testing.assert_close(rig.out, self.expected, rtol=0.02, atol=0.01)
            timing = rig.time_step(step, self.bytes)
            row |= {
                "us": timing.median,
                "low": timing.low,
                "high": timing.high,
                "bounds": timing.median / self.bound,
            }
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
        self.result["flows"].setdefault(self.program.name, []).append(row)
        print(self.program.name, row, flush=True)
        self.path.write_text(json.dumps(self.result, indent=1))
        return row.get("us")

    def best(self, choices: Iterator[Choice], count: int) -> list[Choice]:
        timed = [(self.time(choice), choice) for choice in choices]
        return [
            choice
            for _, choice in sorted((each for each in timed if each[0]), key=lambda each: each[0])[:count]
        ]

    def run(self) -> None:
        self.time({})
        self.time({"overlap": False})
        self.time({"form": "fused"})
        attention = self.best(attention_choices(self.attention), 2)
        scoring = self.best(scoring_choices(self.elements), 2)
        for one in attention:
            for other in scoring:
                self.time(one | other)
        rows = [row for row in self.result["flows"][self.program.name] if "us" in row]
        for row in sorted(rows, key=lambda row: row["us"])[:4]:
            print("best", self.program.name, row, flush=True)


def sweep(out: Path, commit: str, seconds: float, sizes: list[tuple[int, int]]) -> None:
    """bench.json and bench.csv: BlockTopK and Quest at these (batch, context)."""
    programs = [
        trace_file(ROOT / "algorithms" / f"{name}.py", {"budget": BUDGET}, Shape(32, 8, 128, 32)).program
        for name in ("block_topk", "quest")
    ]
    found_programs = [each for each in programs if each]
    todo = [
        each
        for each in points(
            found_programs, sorted({batch for batch, _ in sizes}), sorted({length for _, length in sizes})
        )
        if (each.batch, each.context) in sizes
    ]
    found = Sweep(out, {"measured": True, **provenance(commit)})

    def show(row: dict[str, Any]) -> None:
        text = [f"{row['flow']} {row['batch']} x {row['context']}: bound {row['bound_us']['step']:.1f} us"]
        if "step_us" in row:
            text.append(f"step {row['step_us']['median']:.1f} ({row['over_bound']:.2f} bounds)")
            text += [f"{name} {each['median']:.1f}" for name, each in row["parts_us"].items()]
            text.append(f"{row['speedup']:.2f} times faster than")
        text.append(f"{row['fastest_dense']} {row['dense_us'][row['fastest_dense']]['median']:.1f}")
        auto = row["auto"]
        text.append(f"auto ({auto['chosen']}) {auto['us']['median']:.1f}, {auto['over_dense']:.3f} of dense")
        print(", ".join(text), f"[{row['took_s']:.0f} s]", flush=True)

    run(
        todo,
        found,
        seconds=seconds,
        kv="bf16",
        entries=None,
        show=show,
        progress=lambda line: print(line, flush=True),
    )
    for each in found.skipped:
        print("skipped", each, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--points", nargs="*", metavar="BATCHxCONTEXT", help="of the sweep, instead of all")
    options = parser.parse_args()
    if options.sweep:
        sizes = [(batch, context) for batch in BATCHES for context in CONTEXTS]
        if options.points:
            sizes = [
                (int(batch), int(length)) for batch, length in (each.split("x") for each in options.points)
            ]
        sweep(options.out, options.commit, options.seconds, sizes)
        return
    start = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    result = {
        **provenance(options.commit),
        "copy_bytes_per_s": copy_bandwidth(torch.device("cuda")),
        "flows": {},
    }
    for number, name in enumerate(("block_topk", "quest")):
        torch.cuda.empty_cache()
        program = trace_file(
            ROOT / "algorithms" / f"{name}.py", {"budget": BUDGET}, Shape(32, 8, 128, 12)
        ).program
        assert program is not None
        deadline = start + options.seconds * (number + 1) / 2
        Study(program, result, options.out / "step.json", deadline).run()


if __name__ == "__main__":
    main()
