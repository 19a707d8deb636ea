"""Figures as a table in Markdown: each load beside SGLang's two dense backends of the same run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

COLUMNS = ("server", "requests at once", "steady tokens/s", "step ms", "x default", "x tensor cores",
           "token p50 ms", "token p95 ms", "first token p50 ms", "KV read of dense")  # fmt: skip


def report(document: Mapping[str, Any]) -> str:
    """The whole page."""
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    parts = [
        "# SGLang with and without Vortex\n",
        f"`benchmarks/sglang.py` on {document['device']}; {versions}; commit {document['commit']}. Random weights; "
        "decode graphs, overlap scheduler and radix cache on. Steady: the median of the scheduler's own rates while "
        "as many requests decode as the scheduler admits. Times of tokens are a client's, over requests.\n",
    ]
    for group in dict.fromkeys(row["group"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["group"] == group]
        for model, load in dict.fromkeys((row["model"], row["load"]) for row in rows):
            parts.append(f"## {group}: {model}, {load}\n")
            parts.append(
                "\n".join(table([row for row in rows if (row["model"], row["load"]) == (model, load)]))
            )
            parts.append("")
    return "\n".join(parts)


def table(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    dense = {row["kind"]: row.get("steady_tokens_per_s") for row in rows}
    for row in rows:
        rate = row.get("steady_tokens_per_s")
        cells = [
            row["kind"], number(row.get("running"), 0), number(rate, 0),
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
