"""Writes what the documentation takes from the code: `python -m docs.generate` after a change to it.

diagnostics.md  the catalogue, with the example files of the tests
language.md     the operator tables between its two markers
algorithms.md   the shipped algorithms (docs/library.py)
"""

from __future__ import annotations

import inspect
from pathlib import Path

from docs.library import algorithms_page
from tests.dsl.examples import EXAMPLES, PROCESS, Example
from vortex.dsl.calls import plain_signature
from vortex.dsl.catalogue import AXES, CATALOGUE, CLASS, FILE, LINTS, PYTHON, RESULTS, Kind
from vortex.dsl.diagnostics import render
from vortex.dsl.registry import OPERATORS, Operator
from vortex.engines.sglang.errors import REFUSALS

ROOT = Path(__file__).resolve().parent.parent

SECTIONS = (
    ("The file", FILE),
    ("The class and its hyper-parameters", CLASS),
    ("Python that tensors of a flow take no part in", PYTHON),
    ("Axes", AXES),
    ("Results, entries and states", RESULTS),
    ("Lints: warnings about programs that run", LINTS),
)

INTRODUCTION = """# Diagnostics

Generated from `vortex/dsl/catalogue.py`, `vortex/engines/sglang/errors.py` and `tests/dsl/diagnostics/` by
`python -m docs.generate`.

Every finding has a stable code, the line and a caret, one sentence, and what to write instead. All findings of a
file come in one run. Errors are VTX0 to VTX4; VTX5 are warnings about programs that run. `vortex check --json` gives a
list of objects with `code`, `severity`, `file`, `line`, `column` (both from 1; 0 where a whole file is meant),
`message` and `remedy`. VTX6 are servers that do not start.
"""

SERVERS = """## Servers that do not start

`vortex.engines.sglang` raises `StartError`, whose `code` is one of these; [sglang.md](sglang.md) says why. Names in
braces stand for what is filled in.

| code | message | what to do |
|---|---|---|"""


def diagnostics_page() -> str:
    """The text of docs/diagnostics.md."""
    parts = [INTRODUCTION]
    for title, kinds in SECTIONS:
        parts.append(f"## {title}\n")
        parts += [_entry(slug, kind) for slug, kind in kinds.items()]
    parts.append(SERVERS)
    parts += [
        f"| {kind.code} | {_words(kind.message)} | {_words(kind.remedy)} |" for kind in REFUSALS.values()
    ]
    return "\n".join(parts).rstrip() + "\n"


def _words(text: str) -> str:
    """A format string in a cell: names in braces stand for what is filled in."""
    return text.replace("{{", "{").replace("}}", "}").replace("\n", " ").replace("|", "\\|")


def _entry(slug: str, kind: Kind) -> str:
    shown = [example for example in (*EXAMPLES, *PROCESS) if example.slug == slug]
    text = [f"### {kind.code} {slug}\n"]
    for example in shown:
        text.append(_example(example, kind))
    return "\n".join(text)


def _example(example: Example, kind: Kind) -> str:
    intro = f"With `{example.command}`:\n\n" if example.command else ""
    code = f"```python\n{example.source}```\n"
    if example in PROCESS:
        limit = (
            "256" if example.slug == "output-limit" else "1024" if example.slug == "memory-limit" else "10"
        )
        facts = {"limit": limit, "error": "exit status 1"}
        lines = [f"file.py: {kind.severity} {kind.code}: {kind.message.format(**facts)}"]
        lines.append(f"  = {kind.remedy.format(**facts)}")
        return f"{intro}{code}\n```text\n" + "\n".join(lines) + "\n```\n"
    (finding,) = example.findings
    text = render(finding, example.text).replace(str(example.path), "file.py")
    rows = [row.split("  # <- ")[0] if row.startswith("    ") else row for row in text.splitlines()]
    return f"{intro}{code}\n```text\n" + "\n".join(rows) + "\n```\n"


FAMILIES = (
    ("elementwise", "Elementwise: operands align by axis name"),
    ("matmul", "Products of matrices"),
    ("reduce", "Reductions: they remove their axes"),
    ("row", "Operators over a whole row: they keep their axes"),
    ("shape", "Rearranging"),
    ("select", "Index sets"),
    ("attention", "Attention"),
)

SYMBOLS = {
    "Add": "a + b", "Sub": "a - b", "Mul": "a * b", "Div": "a / b", "FloorDiv": "a // b", "Mod": "a % b",
    "Pow": "a ** b", "Less": "a < b", "LessEqual": "a <= b", "Greater": "a > b", "GreaterEqual": "a >= b",
    "Equal": "a == b", "NotEqual": "a != b", "And": "a & b", "Or": "a | b", "Xor": "a ^ b", "Not": "~x",
    "Neg": "-x", "Abs": "abs(x)",
    "GeMM": "a @ b",
}  # fmt: skip
"""Operators that Python's syntax also writes."""


def operator_tables() -> str:
    """A table a family, one row a public operator."""
    parts = []
    for family, title in FAMILIES:
        parts.append(f"**{title}**\n\n| operator | meaning |\n|---|---|")
        parts += [_row(op) for op in OPERATORS.values() if op.public and op.family == family]
        parts.append("")
    return "\n".join(parts)


def _row(op: Operator) -> str:
    called = f"`{op.name}{plain_signature(op.signature)}`"
    if op.name in SYMBOLS:
        called += f", `{SYMBOLS[op.name]}`"
    meaning = " ".join(inspect.cleandoc(op.doc).split())
    return "| {} | {} |".format(*(cell.replace("|", "\\|") for cell in (called, meaning)))


START, END = "<!-- operators: generated -->\n", "<!-- end of operators -->"


def language_page(text: str) -> str:
    """docs/language.md with fresh operator tables."""
    before, rest = text.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{operator_tables()}\n{END}{after}"


def main() -> None:
    assert set(CATALOGUE) == {slug for _, kinds in SECTIONS for slug in kinds}
    (ROOT / "docs" / "diagnostics.md").write_text(diagnostics_page(), encoding="utf-8")
    language = ROOT / "docs" / "language.md"
    language.write_text(language_page(language.read_text(encoding="utf-8")), encoding="utf-8")
    (ROOT / "docs" / "algorithms.md").write_text(algorithms_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
