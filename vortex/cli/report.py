"""What commands make of an algorithm file: its program, or the report that ends them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import typer

from vortex.cli.console import show
from vortex.cli.settings import blamed, status
from vortex.dsl.check import Report, check
from vortex.dsl.diagnostics import SCHEMA_VERSION
from vortex.dsl.ir import Program, Shape


def program_of(
    file: str, given: Mapping[str, str], shape: Shape | None = None, as_json: bool = False
) -> Program:
    """The program of a file under `--set`; warnings go to stderr, and errors end the command."""
    traced = check(file, given, shape)
    report = blamed(Report(file, traced.findings), given)
    if traced.program is None:
        refuse([report], given, as_json)
    show(report.findings, sys.stderr)
    return traced.program


def refuse(reports: Sequence[Report], given: Mapping[str, Any], as_json: bool = False) -> NoReturn:
    """Ends a command that needs what reports say is wrong: as JSON on stdout, or as text on stderr."""
    if as_json:
        typer.echo(document(reports))
    else:
        show([finding for report in reports for finding in report.findings], sys.stderr)
    raise typer.Exit(status(reports, given))


def document(reports: Sequence[Report]) -> str:
    """Reports in JSON, the form of `vortex check --json`."""
    said = {
        "schema_version": SCHEMA_VERSION,
        "files": [{"target": each.target, "ok": not each.errors} for each in reports],
        "findings": [finding.json() for each in reports for finding in each.findings],
    }
    return json.dumps(said, indent=2)
