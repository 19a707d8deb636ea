"""What all commands share in speaking: exit codes, findings as text, failures."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, NoReturn

import typer

from vortex.dsl.diagnostics import Diagnostic, render

if TYPE_CHECKING:
    from rich.console import Console

ERRORS, USAGE = 1, 2
INTERRUPTED, CLOSED = 130, 141
"""What a shell reports for Ctrl-C and for a reader that went away."""

WIDEST = 160
"""Characters of the widest table: a narrow terminal wraps its lines, which keeps every digit."""

STYLES = {"error": typer.colors.RED, "warning": typer.colors.YELLOW}


def coloured(stream: IO[str]) -> bool:
    """Whether a stream is a terminal that shows colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """Text of a file that may hold anything, without what would steer a terminal."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )


def show(findings: Iterable[Diagnostic], stream: IO[str]) -> None:
    """Prints findings with the author's lines and carets."""
    for finding in findings:
        text = printable(render(finding))
        if coloured(stream):
            mark = f"{finding.severity} {finding.code}"
            text = text.replace(mark, typer.style(mark, fg=STYLES[finding.severity], bold=True), 1)
        typer.echo(text, file=stream, color=coloured(stream))


def wide_console(stderr: bool = False) -> Console:
    """For tables of figures: never so narrow that a figure is cut."""
    from rich.console import Console

    console = Console(highlight=False, stderr=stderr)
    console.width = max(console.width, WIDEST)
    return console


def fail(message: str) -> NoReturn:
    """Ends a command that cannot do what was asked, with the reason on stderr."""
    typer.echo(f"error: {printable(message)}", err=True)
    raise typer.Exit(USAGE)
