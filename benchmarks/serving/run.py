"""Runs cases one after the other: a server each, its log read for steady rates, results kept after each."""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.serving.cases import Case, Load, cases, config
from benchmarks.serving.report import report
from benchmarks.serving.servers import Server, cpu_seconds, gathered

ROOT = Path(__file__).resolve().parents[2]
SHORTEST = 15.0
"""Seconds in which no server comes to a result."""

STEADY = re.compile(r"Decode batch.*#running-req: (\d+).*gen throughput \(token/s\): ([\d.]+)")


def rates(log: str, load: Load) -> tuple[int, list[float]]:
    """The most requests of a load that decoded together, and tokens a second of the intervals in which so many did,
    without the first, which has prefill. They are fewer than the load has where the scheduler admits fewer."""
    _, _, part = log.partition(f"== {load.name}\n")
    part = part.partition("== end")[0]
    found = [(int(running), float(rate)) for running, rate in STEADY.findall(part)]
    most = max((running for running, _ in found), default=0)
    return most, [rate for running, rate in found if running == most][1:]


def rows_of(server: Server, found: Mapping[str, Any], changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a load that came to its end, with the rates that the server's log says."""
    case, rows = server.case, []
    text = server.log.read_text(encoding="utf-8", errors="replace")
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


def chosen(only: list[str], requests: int | None, tiny: bool) -> list[Case]:
    """Cases in the order of the patterns, all without a pattern. A pattern matches names of cases, or of loads
    (CASE/LOAD); it may end in `=TOKENS`: at most so many for each answer."""
    found: dict[str, Case] = {}
    taken: set[str] = set()
    for one in only or ["*"]:
        pattern, _, output = one.partition("=")
        for case in cases():
            names = {f"{case.name}/{load.name}": load for load in case.loads}
            if not fnmatch.fnmatch(case.name, pattern):
                names = {name: load for name, load in names.items() if fnmatch.fnmatch(name, pattern)}
            loads = [shorter(load, int(output or load.output), requests, tiny)
                     for name, load in names.items() if name not in taken]  # fmt: skip
            taken |= names.keys()
            if loads:
                before = found.get(case.name, replace(case, loads=()))
                found[case.name] = replace(case, loads=tuple(dict.fromkeys([*before.loads, *loads])))
    return list(found.values())


def missing(todo: list[Case], document: Mapping[str, Any]) -> list[Case]:
    """Of these, the loads that have no row."""
    there = {key(row) for row in document["rows"]}
    left = (replace(each, loads=tuple(load for load in each.loads if (*each.key, load.name) not in there))
            for each in todo)  # fmt: skip
    return [each for each in left if each.loads]


def shorter(load: Load, output: int, requests: int | None, tiny: bool) -> Load:
    return replace(
        load,
        input=min(load.input, 512) if tiny else load.input,
        output=min(load.output, output),
        requests=min(load.requests, requests or load.requests),
    )


def line(case: Case, row: Mapping[str, Any]) -> str:
    steady = row.get("steady_tokens_per_s")
    parts = [f"{row['tokens_per_s']:.0f} tokens/s with prefill"]
    if steady:
        parts.insert(0, f"{steady:.0f} tokens/s steady over {row['intervals']} intervals")
    if "per_token_p50_ms" in row:
        parts.append(f"{row['per_token_p50_ms']:.2f} / {row['per_token_p95_ms']:.2f} ms a token (p50 / p95)")
    return f"{case.name} {row['load']}: {', '.join(parts)}; started in {row['start_s']:.0f} s"


def options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=ROOT / "benchmarks" / "results")
    add("--only", action="append", default=[], metavar="PATTERN[=TOKENS]",
        help="CASE or CASE/LOAD as --list shows them, in this order; at most so many tokens an answer")  # fmt: skip
    add("--missing", action="store_true", help="of these, what the results lack")
    add("--requests", type=int, help="at most so many requests of a load")
    add("--together", type=int, default=8, help="servers that import at once")
    add("--seconds", type=float, default=1e9, help="for everything; what has come by then is kept")
    add("--limit", type=float, default=600, help="seconds of one server at most, from its turn on")
    add("--commit", default="", help="where there is no git")
    add("--note", default="", help="kept with the rows: what is special about the machine")
    add("--cpu", action="store_true", help="a tiny model on a CPU, to try this script")
    add("--list", action="store_true")
    add("--report", action="store_true", help="write the table of the results that are there")
    return parser.parse_args()


def main(description: str) -> None:
    given = options(description)
    todo = chosen(given.only, given.requests, given.cpu)
    if given.list:
        print("\n".join(f"{each.name}: {', '.join(load.name for load in each.loads)}" for each in todo))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "sglang.json"
    document = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {"rows": []}
    if given.report:
        write(given.out, document)
        return
    if given.missing:
        todo = missing(todo, document)
    run = Run(given, document, time.monotonic() + given.seconds)
    with tempfile.TemporaryDirectory() as folder:
        for at in range(0, len(todo), given.together):
            run.wave(todo[at : at + given.together], Path(folder))
    sys.exit(run.failed)


class Run:
    """Servers after one another; what they came to is written after each.

    given     of the command line
    document  results so far
    end       when everything is cut off, on the monotonic clock
    """

    def __init__(self, given: argparse.Namespace, document: dict[str, Any], end: float) -> None:
        self.given, self.document, self.end = given, document, end
        self.head, self.failed = head(given.commit), False
        self.changes = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 256,
                        "vocab_size": 1024, "torch_dtype": "float32"} if given.cpu else {}  # fmt: skip
        (given.out / "log").mkdir(exist_ok=True)

    def wave(self, todo: list[Case], folder: Path) -> None:
        """Starts servers together up to the gate, and lets them go on one after the other."""
        if self.left() < SHORTEST:
            print("no time for", ", ".join(each.name for each in todo), flush=True)
            return
        servers, begin = [], time.monotonic()
        try:
            for case in todo:
                name = case.name.replace("/", "_")
                log = self.given.out / "log" / f"{name}.log"
                device = "cpu" if self.given.cpu else "cuda"
                servers.append(Server(case, folder / name, log, device, self.changes))
            gathered(servers, min(self.left(), 300))
            print(f"{len(servers)} servers at the gate after {time.monotonic() - begin:.0f} s", flush=True)
            for number, server in enumerate(servers):
                self.measure(server, servers[number + 1 :])
        finally:
            for server in servers:
                server.end()

    def measure(self, server: Server, waiting: list[Server]) -> None:
        name = server.case.name
        if self.left() < SHORTEST:
            print(f"no time for {name}", flush=True)
            return
        sessions = [each.process.pid for each in waiting]
        before = cpu_seconds(sessions)
        found = server.run(min(self.given.limit, self.left()))
        used = sum(now - before.get(pid, 0.0) for pid, now in cpu_seconds(sessions).items())
        if found is None or not found["loads"]:
            print(f"{name}: ended with {server.process.returncode}, see {server.log}", flush=True)
            self.failed = True
            return
        for row in rows_of(server, found, self.changes):
            row |= {"versions": self.head["versions"], "commit": self.head["commit"],
                    "waiting_servers": len(waiting), "waiting_cpu_s": round(used, 2)}  # fmt: skip
            if self.given.note:
                row["note"] = self.given.note
            self.document["rows"] = [each for each in self.document["rows"] if key(each) != key(row)] + [row]
            print(line(server.case, row), flush=True)
        self.document |= self.head
        write(self.given.out, self.document)

    def left(self) -> float:
        return self.end - time.monotonic()


def key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (row["group"], row["model"], row["kind"], row["load"])
