"""Runs cases one after the other: a server each, its log read for steady rates, results kept after each."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.serving.cases import Case, Load, cases, config
from benchmarks.serving.report import report

ROOT = Path(__file__).resolve().parents[2]
STEADY = re.compile(r"Decode batch.*#running-req: (\d+).*gen throughput \(token/s\): ([\d.]+)")
ENTRY_POINTS = """[sglang.srt.plugins]
vortex = vortex.engines.sglang.plugin:register
random_weights = benchmarks.serving.weights:register
"""


def rates(log: str, load: Load) -> tuple[int, list[float]]:
    """The most requests of a load that decoded together, and tokens a second of the intervals in which so many did,
    without the first, which has prefill. They are fewer than the load has where the scheduler admits fewer."""
    _, _, part = log.partition(f"== {load.name}\n")
    part = part.partition("== end")[0]
    found = [(int(running), float(rate)) for running, rate in STEADY.findall(part)]
    most = max((running for running, _ in found), default=0)
    return most, [rate for running, rate in found if running == most][1:]


def plugin_folder(folder: Path) -> Path:
    """What makes SGLang find plugins that are not installed: metadata of a package on the path."""
    package = folder / "vortex_benchmark-0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vortex-benchmark\nVersion: 0\n")
    installed = "vortex" in _installed()
    lines = [line for line in ENTRY_POINTS.splitlines() if not (installed and line.startswith("vortex ="))]
    (package / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def _installed() -> set[str]:
    from importlib.metadata import entry_points

    return {each.name for each in entry_points(group="sglang.srt.plugins")}


def measured(
    case: Case, out: Path, device: str, changes: Mapping[str, Any], limit: float
) -> list[dict[str, Any]]:
    """Starts a server, loads it, and reads its log; one row a load. Raises RuntimeError where it ended early."""
    (out / "log").mkdir(parents=True, exist_ok=True)
    log = out / "log" / f"{case.name.replace('/', '_')}.log"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = {
            "case": case.json(),
            "device": device,
            "models": str(folder / "models"),
            "changes": dict(changes),
        }
        (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        path = [str(ROOT), str(plugin_folder(folder / "plugins")), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, **case.environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        command = [sys.executable, "-u", "-m", "benchmarks.serving.client", "spec.json", "results.json"]
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                [*command[:-2], str(folder / "spec.json"), str(folder / "results.json")], cwd=ROOT,
                env=environment, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        results = folder / "results.json"
        if not results.exists():
            raise RuntimeError(f"{case.name}: ended with {process.returncode}, see {log}")
        found = json.loads(results.read_text(encoding="utf-8"))
    text = log.read_text(encoding="utf-8", errors="replace")
    rows = []
    for load, row in zip(case.loads, found["loads"], strict=False):
        running, steady = rates(text, load)
        rows.append({"group": case.group, "model": case.model, "kind": case.kind, "values": case.values, **row,
                     "start_s": found["start_s"], "dense_kv_bytes": dense_bytes(case, load, changes)})  # fmt: skip
        if steady and load.rate is None:
            rate = statistics.median(steady)
            rows[-1] |= {
                "steady_tokens_per_s": rate,
                "running": running,
                "step_ms": running / rate * 1e3,
                "intervals": len(steady),
            }
    return rows


def dense_bytes(case: Case, load: Load, changes: Mapping[str, Any]) -> int:
    """K and V that dense decode steps of a load read."""
    model = config(case.model, changes)
    token = 2 * model["num_key_value_heads"] * model["head_dim"] * (4 if changes else 2)
    lengths = sum(range(load.input + 1, load.input + load.output))
    return model["num_hidden_layers"] * token * lengths * load.requests


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("sglang", "torch", "triton", "flashinfer-python"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def head(commit: str) -> dict[str, Any]:
    from vortex.bench.sweep import provenance

    found = provenance(commit)
    return {
        "device": found["device"],
        "versions": {**found["versions"], **versions()},
        "commit": found["commit"],
    }


def write(out: Path, document: dict[str, Any]) -> None:
    (out / "sglang.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (out / "sglang.md").write_text(report(document), encoding="utf-8")


def chosen(only: list[str], output: int | None, requests: int | None, tiny: bool) -> list[Case]:
    """The cases whose names match, with shorter loads where that is asked."""
    found = [each for each in cases() if not only or any(fnmatch.fnmatch(each.name, one) for one in only)]

    def shorter(load: Load) -> Load:
        fewer = min(load.requests, requests or load.requests)
        ids = min(load.input, 512) if tiny else load.input
        return replace(load, input=ids, output=min(load.output, output or load.output), requests=fewer)

    return [replace(each, loads=tuple(dict.fromkeys(map(shorter, each.loads)))) for each in found]


def line(case: Case, row: Mapping[str, Any]) -> str:
    steady = row.get("steady_tokens_per_s")
    parts = [f"{row['tokens_per_s']:.0f} tokens/s with prefill"]
    if steady:
        parts.insert(0, f"{steady:.0f} tokens/s steady over {row['intervals']} intervals")
    if "per_token_p50_ms" in row:
        parts.append(f"{row['per_token_p50_ms']:.2f} / {row['per_token_p95_ms']:.2f} ms a token (p50 / p95)")
    return f"{case.name} {row['load']}: {', '.join(parts)}; started in {row['start_s']:.0f} s"


def main(description: str) -> None:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="of names as --list shows them"
    )
    parser.add_argument("--output", type=int, help="at most so many tokens a request")
    parser.add_argument("--requests", type=int, help="at most so many requests of a load")
    parser.add_argument("--seconds", type=float, default=1e9, help="no server is started after so long")
    parser.add_argument("--limit", type=float, default=600, help="seconds of one server at most")
    parser.add_argument("--commit", default="", help="where there is no git")
    parser.add_argument("--cpu", action="store_true", help="a tiny model on a CPU, to try this script")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--report", action="store_true", help="write the table of the results that are there")
    given = parser.parse_args()
    todo = chosen(given.only, given.output, given.requests, given.cpu)
    if given.list:
        print("\n".join(f"{each.name}: {', '.join(load.name for load in each.loads)}" for each in todo))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "sglang.json"
    document = (
        json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {**head(given.commit), "rows": []}
    )
    if given.report:
        write(given.out, document)
        return
    changes = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 256, "vocab_size": 1024,
               "torch_dtype": "float32"} if given.cpu else {}  # fmt: skip
    begin, failed = time.monotonic(), False
    for case in todo:
        if time.monotonic() - begin > given.seconds:
            print(f"no time for {case.name}")
            continue
        try:
            rows = measured(case, given.out, "cpu" if given.cpu else "cuda", changes, given.limit)
        except RuntimeError as error:
            print(error, flush=True)
            failed = True
            continue
        names = {(row["group"], row["model"], row["kind"], row["load"]) for row in rows}
        document["rows"] = [row for row in document["rows"]
                            if (row["group"], row["model"], row["kind"], row["load"]) not in names] + rows  # fmt: skip
        write(given.out, document)
        for row in rows:
            print(line(case, row), flush=True)
    sys.exit(failed)
