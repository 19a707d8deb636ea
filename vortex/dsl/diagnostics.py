"""What an author is told: a stable code, one sentence, the place in the file, and what to write instead."""

from __future__ import annotations

import difflib
import linecache
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from vortex.dsl.catalogue import CATALOGUE
from vortex.dsl.ir import Location
from vortex.dsl.source import python_lines

SCHEMA_VERSION = 1
"""Version of the JSON form of a report; it changes when a field changes its meaning."""

SHOWN = 160
"""Characters of an author's line that a report shows."""


@dataclass(frozen=True)
class Diagnostic:
    """One finding. severity is "error" or "warning" (a lint); columns are 1-based, 0 where a whole file is meant."""

    code: str
    severity: str
    file: str
    line: int
    column: int
    message: str
    remedy: str
    end_line: int = 0
    end_column: int = 0

    def json(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(slug: str, file: str, location: Location | None, **facts: Any) -> Diagnostic:
    """The catalogue's entry `slug`, filled with facts, at a place of the author's file."""
    kind = CATALOGUE[slug]
    place = location or Location(0, 0, 0, 0)
    return Diagnostic(
        code=kind.code,
        severity=kind.severity,
        file=file,
        line=place.line,
        column=place.column,
        message=printable(kind.message.format(**facts)),
        remedy=printable(kind.remedy.format(**facts)),
        end_line=place.end_line,
        end_column=place.end_column,
    )


def printable(text: str) -> str:
    """Text of an author's file made fit for one line of a report: what does not print is escaped."""
    text = re.sub(r"block\[%-?\d+\]", "block[restricted]", text)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def nearest(name: str, names: Iterable[str]) -> str:
    """ " Did you mean …?" with the closest of the known names, or nothing where none is close."""
    known = sorted(set(names))
    lowered = {each.lower(): each for each in reversed(known)}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f" Did you mean {lowered[close[0]]}?" if close else ""


def render(finding: Diagnostic, source: str | None = None) -> str:
    """The finding as plain text: place, message, the author's line with a caret, remedy."""
    lines = []
    if finding.line:  # what no line is blamed for may be a pipe, which reading would wait for
        lines = python_lines(source) if source is not None else linecache.getlines(finding.file)
    where = f"{finding.file}:{finding.line}:{finding.column}" if finding.line else finding.file
    text = [f"{where}: {finding.severity} {finding.code}: {finding.message}"]
    if 0 < finding.line <= len(lines):
        line = "".join(each if each.isprintable() else " " for each in lines[finding.line - 1].rstrip("\r\n"))
        stop = finding.end_column if finding.end_line == finding.line else len(line) + 1
        width = max(1, min(stop, len(line) + 1) - finding.column)
        # Of a line that no terminal shows whole, the part around the caret.
        cut = max(finding.column - 1 - SHOWN // 2, 0) if len(line) > SHOWN else 0
        line = line[cut : cut + SHOWN]
        width = min(width, max(len(line) - (finding.column - 1 - cut), 1))
        text += [f"    {line}", "    " + " " * (finding.column - 1 - cut) + "^" * width]
    text.append(f"  = {finding.remedy}")
    return "\n".join(text)
