"""`vortex bench FILE…`: what a step of a layer costs, beside its byte bound and the fastest dense kernel."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from vortex.bench.sweep import Point, Sweep, account, points, provenance, run
from vortex.cli.console import fail, show, wide_console
from vortex.cli.report import refuse
from vortex.cli.settings import FILE_HELP, MODEL_HELP, SetOption, blamed, overrides, shape_of
from vortex.dsl.check import Report, check
from vortex.dsl.ir import Program, Shape

BATCHES, CONTEXTS = "1,4,16,64", "4096,8192,16384,32768,65536,131072"
TYPES = ("bf16", "fp16", "fp32", "fp8")


def bench_command(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help=FILE_HELP)],
    model: Annotated[str | None, typer.Option(help=MODEL_HELP, metavar="NAME|DIR")] = None,
    query_heads: Annotated[int | None, typer.Option(min=1, help="Instead of the model's.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Instead of the model's.")] = None,
    head_dim: Annotated[int | None, typer.Option(min=1, help="Instead of the model's.")] = None,
    batch: Annotated[str, typer.Option(help="Requests of a step, separated by commas.")] = BATCHES,
    context: Annotated[str, typer.Option(help="Tokens of each request, separated by commas.")] = CONTEXTS,
    budget: Annotated[
        str | None, typer.Option(help="Budgets, separated by semicolons; by default the file's.")
    ] = None,
    settings: Annotated[list[str] | None, SetOption] = None,
    kv: Annotated[str, typer.Option(help=f"How K and V are stored: {', '.join(TYPES)}.")] = "bf16",
    entries: Annotated[str | None, typer.Option(help="The same of entries, by default as K and V.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="No point is begun after so long.")] = 300,
    out: Annotated[
        Path | None, typer.Option(help="Write bench.json, bench.csv and bench.png here.", metavar="DIR")
    ] = None,
    commit: Annotated[str, typer.Option(help="Recorded where there is no git.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time one layer's decode step on this GPU: sparse, dense, and what `auto` chooses.

    Without a GPU the bytes that a step reads are printed alone.
    """
    for name, value in (("--kv", kv), ("--entries", entries)):
        if value is not None and value not in TYPES:
            raise typer.BadParameter(f"{name} {value}: known are {', '.join(TYPES)}")
    shape = _shape(shape_of(model), query_heads, kv_heads, head_dim)
    programs = _programs(files, overrides(settings or ()), budget, shape, as_json)
    todo = points(programs, _numbers("--batch", batch), _numbers("--context", context))
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            _measure(todo, Sweep(out, {}), seconds, kv, entries, commit, as_json)
            return
    _account(todo, out, kv, entries, as_json)


def _shape(shape: Shape, query_heads: int | None, kv_heads: int | None, head_dim: int | None) -> Shape:
    given = {"query_heads": query_heads, "kv_heads": kv_heads, "head_dim": head_dim}
    shape = replace(shape, **{name: value for name, value in given.items() if value is not None})
    if shape.query_heads % shape.kv_heads:
        raise typer.BadParameter(
            f"{shape.query_heads} query heads are no multiple of {shape.kv_heads} KV heads"
        )
    return shape


def _numbers(name: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and part.isascii() and 0 < len(part) < 10 and int(part) for part in parts):
        raise typer.BadParameter(f"{name}: positive numbers separated by commas are expected, got {text!r}")
    return list(dict.fromkeys(int(part) for part in parts))


def _programs(
    files: list[str], given: dict[str, str], budget: str | None, shape: Shape, as_json: bool
) -> list[Program]:
    """One for each file and budget; errors end the command."""
    budgets = [None] if budget is None else [each.strip() for each in budget.split(";")]
    found, reports = [], []
    for file in files:
        for each in budgets:
            own = given if each is None else {**given, "budget": each}
            traced = check(file, own, shape)
            reports.append(blamed(Report(file, traced.findings), own))
            found.append(traced.program)
    if None in found:
        bad = [report for report in reports if report.errors]
        refuse(bad, {**given, "budget": budget}, as_json)
    warnings = (finding for report in reports for finding in report.findings)
    show(dict.fromkeys(warnings), sys.stderr)  # once, whatever the number of budgets
    return [program for program in found if program is not None]


def _account(todo: list[Point], out: Path | None, kv: str, entries: str | None, as_json: bool) -> None:
    rows = account(todo, kv, entries)
    sweep = Sweep(out, {"device": "cpu", "measured": False}, rows)
    _write(sweep)
    if as_json:
        typer.echo(json.dumps(sweep.document, indent=2))
        return
    from vortex.bench.show import table

    wide_console().print("No GPU: the bytes that attention of one layer reads, nothing is timed.")
    wide_console().print(table(rows, measured=False))


def _measure(
    todo: list[Point], sweep: Sweep, seconds: float, kv: str, entries: str | None, commit: str, as_json: bool
) -> None:
    from vortex.bench.show import parts, plot, summary, table

    console = wide_console(stderr=as_json)
    sweep.head |= {"measured": True, **provenance(commit)}
    shown: set[str] = set()

    def told(row: dict[str, Any]) -> None:
        """One line a point, and the kernels of each flow's first."""
        if row["flow"] not in shown:
            shown.add(row["flow"])
            console.print(parts(row))
        console.print(table([row], measured=True))

    run(todo, sweep, seconds=seconds, kv=kv, entries=entries, show=told,
        progress=lambda line: typer.echo(line, err=True))  # fmt: skip
    _write(sweep)
    if sweep.folder is not None and importlib.util.find_spec("matplotlib") is not None:
        plot(sweep.document, sweep.folder / "bench.png")
    if as_json:
        typer.echo(json.dumps(sweep.document, indent=2))
        return
    console.print(table(sweep.rows, measured=True))
    for line in summary(sweep.document):
        console.print(line, soft_wrap=True)


def _write(sweep: Sweep) -> None:
    try:
        sweep.write()
    except OSError as error:
        fail(f"--out {sweep.folder}: {error.strerror or error}")
