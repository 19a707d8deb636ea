"""`vortex check FILE...`: everything that is wrong with algorithm files, without running a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from vortex.cli.console import printable, show
from vortex.cli.settings import MODEL_HELP, SetOption, blamed, overrides, shape_of, status
from vortex.dsl.check import Report, examine
from vortex.dsl.diagnostics import SCHEMA_VERSION


def check_command(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Algorithm files; file.py:Name chooses one of several flows."),
    ],
    settings: Annotated[list[str] | None, SetOption] = None,
    model: Annotated[str | None, typer.Option(help=MODEL_HELP, metavar="NAME|DIR")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Trace algorithm files and report all of their problems.

    Tracing a file runs it, in a child process with limits of time, memory and output.
    """
    given = overrides(settings or ())
    reports = []
    for report in examine(files, given, shape_of(model)):
        reports.append(blamed(report, given))
        if report.printed:
            typer.echo(printable(report.printed), err=True, nl=not report.printed.endswith("\n"))
        if not as_json:
            show(reports[-1].findings, sys.stdout)
    if as_json:
        typer.echo(json.dumps(_document(reports), indent=2))
    else:
        typer.echo(_summary(reports))
    raise typer.Exit(status(reports, given))


def _document(reports: Sequence[Report]) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "files": [{"target": each.target, "ok": not each.errors} for each in reports],
        "findings": [finding.json() for each in reports for finding in each.findings],
    }


def _summary(reports: Sequence[Report]) -> str:
    errors = sum(len(each.errors) for each in reports)
    warnings = sum(len(each.findings) for each in reports) - errors
    counts = [_count(number, word) for number, word in ((errors, "error"), (warnings, "warning")) if number]
    return f"{_count(len(reports), 'file')}: {', '.join(counts) or 'no problems'}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")
