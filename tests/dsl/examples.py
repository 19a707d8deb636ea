"""The example files of diagnostics/: one mistake each, marked where the caret must stand.

`# <- text` at the end of a line: the finding is on this line, and its caret underlines exactly `text` (`file`: it
has no place in the file). `# set: key=value` and `# target: Name` on top stand for what a command line gives.
A file is named after its entry of the catalogue; `slug__variant.py` shows another way into the same entry. The
files in process/ are for the child process alone: tracing them here would not end well.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from vortex.dsl.diagnostics import Diagnostic
from vortex.dsl.load import trace_file

FOLDER = Path(__file__).parent / "diagnostics"
MARK = "  # <- "


@dataclass(frozen=True)
class Example:
    path: Path

    @property
    def slug(self) -> str:
        return self.path.stem.split("__")[0]

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8", errors="replace")

    @property
    def line(self) -> int:
        """Number of the marked line, 0 where the finding has no place."""
        numbers = [number for number, line in enumerate(self.text.splitlines(), 1) if MARK in line]
        assert len(numbers) == 1, f"{self.path.name} marks {len(numbers)} lines"
        return 0 if self.underlined == "file" else numbers[0]

    @property
    def underlined(self) -> str:
        """The text under the caret."""
        text = next(line for line in self.text.splitlines() if MARK in line).split(MARK)[1]
        return "file" if text.startswith("file") else text

    def found(self, finding: Diagnostic) -> str:
        """The text that a finding's caret underlines, as far as its first line."""
        line = self.text.splitlines()[finding.line - 1]
        end = finding.end_column - 1 if finding.end_line == finding.line else None
        return line[finding.column - 1 : end].split(MARK)[0]

    def _directive(self, name: str) -> str | None:
        lines = [line for line in self.text.splitlines() if line.startswith(f"# {name}: ")]
        return lines[0].split(": ", 1)[1] if lines else None

    @property
    def overrides(self) -> dict[str, str]:
        given = self._directive("set")
        return dict([given.split("=", 1)]) if given else {}

    @property
    def source(self) -> str:
        """The file as an author would write it, without marks."""
        lines = [line.split(MARK)[0].rstrip() for line in self.text.splitlines()]
        return (
            "\n".join(line for line in lines if not line.startswith(("# set: ", "# target: "))).strip() + "\n"
        )

    @property
    def command(self) -> str:
        """What the directives stand for on a command line, or nothing."""
        given, name = self._directive("set"), self._directive("target")
        return f"--set {given}" if given else f"file.py:{name}" if name else ""

    @functools.cached_property
    def findings(self) -> tuple[Diagnostic, ...]:
        name = self._directive("target")
        target = f"{self.path}:{name}" if name else str(self.path)
        return trace_file(target, self.overrides).findings


EXAMPLES = [Example(path) for path in sorted(FOLDER.glob("*.py"))]
PROCESS = [Example(path) for path in sorted((FOLDER / "process").glob("*.py"))]
