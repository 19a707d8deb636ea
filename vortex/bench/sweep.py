"""A benchmark's run: points in an order that puts what matters first, results written after each of them."""

from __future__ import annotations

import csv
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vortex.bench.layer import layer_bytes
from vortex.dsl.ir import Program

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Point:
    program: Program
    batch: int
    context: int


def points(programs: Sequence[Program], batches: Sequence[int], contexts: Sequence[int]) -> list[Point]:
    """All of them: the centre first, then from small to large; the flows of one size one after the other."""
    sizes = [(batch, context) for batch in batches for context in contexts]
    sizes.sort(key=lambda size: (size != (16, 32768), size[0] * size[1], size[0]))
    return [Point(program, *size) for size in sizes for program in programs]


@dataclass
class Sweep:
    """Results so far, and where they go. folder: None keeps them in memory."""

    folder: Path | None
    head: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)

    @property
    def document(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **self.head, "points": self.rows, "skipped": self.skipped}

    def write(self) -> None:
        """bench.json and bench.csv."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "bench.json").write_text(json.dumps(self.document, indent=1) + "\n")
        if self.rows:
            with (self.folder / "bench.csv").open("w", newline="") as file:
                table = [flat(row) for row in self.rows]
                names = list(dict.fromkeys(name for row in table for name in row))
                writer = csv.DictWriter(file, names)
                writer.writeheader()
                writer.writerows(table)


def flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested figures as columns: `step_us.median`."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def account(todo: Sequence[Point], kv: str, entries: str | None) -> list[dict[str, Any]]:
    """The byte account alone, without a GPU."""
    rows = []
    for point in todo:
        read = layer_bytes(point.program, point.batch, point.context, kv, entries)
        rows.append({
            "flow": point.program.name, "batch": point.batch, "context": point.context,
            "budget": point.program.policy.budget, "attended": read.attended, "blocks": read.blocks,
            "bytes": {"entries": read.entries, "kv": read.kv, "step": read.step, "dense": read.dense},
            "speedup_bound": read.speedup,
        })  # fmt: skip
    return rows


def run(
    todo: Sequence[Point], sweep: Sweep, *, seconds: float, kv: str, entries: str | None,
    progress: Callable[[str], None], show: Callable[[dict[str, Any]], None],
) -> None:  # fmt: skip
    """Measures points until time is up; a point that fails is recorded with the reason, and the rest goes on."""
    import torch

    from vortex.attention.measure import copy_bandwidth
    from vortex.bench.point import Bench
    from vortex.bench.warm import compile_kernels

    start = time.monotonic()
    device = torch.device("cuda", torch.cuda.current_device())
    # Nothing is timed beside them.
    for process in compile_kernels(todo, kv, entries):
        process.join()
    bandwidth = copy_bandwidth(device)
    torch.cuda.empty_cache()
    sweep.head |= {"copy_bytes_per_s": bandwidth, "shape": asdict(todo[0].program.shape)}
    longest = max(point.context for point in todo)
    bench = Bench(device, bandwidth, longest, kv, entries, say=progress)
    for point in todo:
        name = {"flow": point.program.name, "batch": point.batch, "context": point.context}
        if time.monotonic() - start > seconds:
            sweep.skipped.append(name | {"why": f"{seconds:g} seconds were over"})
            continue
        try:
            row = bench.measure(point.program, point.batch, point.context)
            row["took_s"] = time.monotonic() - start
            sweep.rows.append(row)
            show(row)
        except Exception as error:
            sweep.skipped.append(name | {"why": f"{type(error).__name__}: {str(error)[:400]}"})
            progress(f"{name}: {sweep.skipped[-1]['why']}")
        torch.cuda.empty_cache()
        sweep.write()
    sweep.write()


def provenance(commit: str) -> dict[str, Any]:
    """Device, versions and commit."""
    import torch

    from vortex.attention.auto import device_name, versions

    device = device_name(torch.device("cuda")) if torch.cuda.is_available() else "cpu"
    if not commit:
        try:
            asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
            commit = asked.stdout.strip()
        except OSError:
            commit = ""
    return {
        "device": device,
        "versions": {**versions(), "torch": torch.__version__},
        "commit": commit or None,
    }
