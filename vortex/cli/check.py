"""`vortex check FILE...`: everything that is wrong with algorithm files, without running a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vortex.cli.console import printable, show
from vortex.cli.report import document
from vortex.cli.settings import FILE_HELP, MODEL_HELP, SetOption, blamed, overrides, shape_of, status
from vortex.dsl.check import Report, examine


def check_command(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help=f"{FILE_HELP} A folder: the algorithm files in it."),
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
    for report in examine(_expanded(files), given, shape_of(model)):
        reports.append(blamed(report, given))
        if report.printed:
            typer.echo(printable(report.printed), err=True, nl=not report.printed.endswith("\n"))
        if not as_json:
            show(reports[-1].findings, sys.stdout)
    if as_json:
        typer.echo(document(reports))
    else:
        typer.echo(_summary(reports))
    raise typer.Exit(status(reports, given))


def _expanded(targets: Sequence[str]) -> list[str]:
    """Targets with a folder's algorithm files in its place: those directly in it that mention vFlow."""
    found: list[str] = []
    for target in targets:
        if not os.path.isdir(target):
            found.append(target)
            continue
        files = sorted(Path(target).glob("*.py"))
        # Checking runs a file: what cannot define a flow is left alone.
        flows = [file for file in files if b"vFlow" in _content(file)]
        if not flows:
            raise typer.BadParameter(f"{target} is a folder without a Python file that mentions vFlow")
        left = [file.name for file in files if file not in flows]
        if left:
            typer.echo(
                f"{target}: left out, as they do not mention vFlow: {printable(', '.join(left))}", err=True
            )
        found += map(str, flows)
    return found


def _content(file: Path) -> bytes:
    """Bytes of a file; of what cannot be read some that mention vFlow, so that the check says why it cannot."""
    try:
        return file.read_bytes() if file.is_file() else b"vFlow"  # reading a pipe would wait for a writer
    except OSError:
        return b"vFlow"


def _summary(reports: Sequence[Report]) -> str:
    errors = sum(len(each.errors) for each in reports)
    warnings = sum(len(each.findings) for each in reports) - errors
    counts = [_count(number, word) for number, word in ((errors, "error"), (warnings, "warning")) if number]
    return f"{_count(len(reports), 'file')}: {', '.join(counts) or 'no problems'}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")
