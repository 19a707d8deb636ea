"""Figures as a table in Markdown: each load beside SGLang's two dense backends of the same run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

COLUMNS = ("server", "requests at once", "steady tokens/s", "tokens/s in all", "step ms", "x default", "x tensor cores",
           "token p50 ms", "token p95 ms", "first token p50 ms", "KV read of dense")  # fmt: skip


def report(document: Mapping[str, Any]) -> str:
    """The whole page."""
    parts = [
        "# SGLang with and without Vortex\n",
        f"`benchmarks/sglang.py` on {document['device']}. Random weights; decode graphs, overlap scheduler and radix "
        "cache on. Steady: the median of the scheduler's own rates while as many requests decode as the scheduler "
        "admits. Times of tokens are a client's, over requests. Servers import together up to the first use of the "
        "GPU and then run one after the other; those whose turn has not come look for a file now and then"
        f"{idle(document['rows'])}.\n",
    ]
    for group in dict.fromkeys(row["group"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["group"] == group]
        for model, load in dict.fromkeys((row["model"], row["load"]) for row in rows):
            these = [row for row in rows if (row["model"], row["load"]) == (model, load)]
            parts += [f"## {group}: {model}, {load}\n", *table(these), "", *origins(these, document), ""]
    return "\n".join(parts)


def origins(rows: list[Mapping[str, Any]], document: Mapping[str, Any]) -> Iterator[str]:
    """Commit and versions of the rows, a line for each that differ."""
    found: dict[str, list[str]] = {}
    for row in rows:
        given = {**document, **row}
        versions = ", ".join(f"{name} {number}" for name, number in given["versions"].items() if number)
        found.setdefault(f"commit {given['commit']}; {versions}", []).append(row["kind"])
    for text, kinds in found.items():
        yield f"{text}." if len(found) == 1 else f"{', '.join(kinds)}: {text}.  "


def idle(rows: list[Mapping[str, Any]]) -> str:
    """How much of the CPU waiting servers used while another one ran, at most."""
    found = [row["waiting_cpu_s"] for row in rows if row.get("waiting_servers")]
    return (
        f" ({max(found):.2f} s of CPU time in all of them during one other's turn, at most)" if found else ""
    )


def table(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    dense = {row["kind"]: row.get("steady_tokens_per_s") for row in rows}
    for row in rows:
        rate = row.get("steady_tokens_per_s")
        cells = [
            row["kind"], number(row.get("running"), 0), number(rate, 0),
            number(row.get("tokens_per_s"), 0),
            number(row.get("step_ms"), 2), ratio(rate, dense.get("flashinfer")),
            ratio(rate, dense.get("flashinfer-tc")), number(row.get("per_token_p50_ms"), 2),
            number(row.get("per_token_p95_ms"), 2), number(row.get("first_token_p50_ms"), 0), share(row),
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def ratio(rate: float | None, dense: float | None) -> str:
    return "" if not rate or not dense else f"{rate / dense:.2f}"


def share(row: Mapping[str, Any]) -> str:
    """Part of the KV cache that decode steps read, by the backend's own counters."""
    found = row.get("counters")
    if not found or not row.get("dense_kv_bytes"):
        return ""
    return f"{found['kv_bytes'] / row['dense_kv_bytes']:.1%}"
