"""Figures as tables in Markdown: each load beside SGLang's two dense backends of the same run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from benchmarks.serving.cases import SHAPES

Row: TypeAlias = Mapping[str, Any]

DECODE = ("server", "at once", "steady tokens/s", "step ms", "x default", "x tensor cores", "KV read of dense",
          "tokens/s in all", "commit")  # fmt: skip
RATED = ("server", "token p50 ms", "token p95 ms", "first token p50 ms", "KV read of dense", "tokens/s in all",
         "commit")  # fmt: skip


def report(document: Row) -> str:
    """The whole page: a table for each group of cases."""
    rows = document["rows"]
    parts = [
        "# SGLang with and without Vortex\n",
        f"`benchmarks/sglang.py` on {document['device']}. Random weights; decode graphs, overlap scheduler and radix "
        "cache on. A load is requests x tokens of a prompt + tokens of an answer; where requests come at random times, "
        "so many a second. At once: how many the scheduler let decode together. Steady: the median of its own rates "
        "while that many did. Times of tokens are a client's, over requests; tokens in all count the time of prompts "
        "too. Ratios are of servers of one commit. Servers import together up to the first use of the GPU and then run "
        f"one after the other; those whose turn has not come look for a file now and then{idle(rows)}.\n",
        *versions(rows, document),
        *notes(rows, document),
    ]
    for group in dict.fromkeys(row["group"] for row in rows):
        parts += [f"## {group}\n", *table([row for row in rows if row["group"] == group], document), ""]
    return "\n".join(parts)


def versions(rows: list[Row], document: Row) -> Iterator[str]:
    """Versions of the rows, with their commits where they differ."""
    found: dict[str, list[str]] = {}
    for row in rows:
        given = {**document, **row}
        text = ", ".join(f"{name} {number}" for name, number in given["versions"].items() if number)
        found.setdefault(text, []).append(given["commit"])
    for text, commits in found.items():
        yield f"{text}.\n" if len(found) == 1 else f"{', '.join(dict.fromkeys(commits))}: {text}.\n"


def notes(rows: list[Row], document: Row) -> Iterator[str]:
    """What was said of a run with --note."""
    for note in dict.fromkeys(row["note"] for row in rows if row.get("note")):
        commits = dict.fromkeys({**document, **row}["commit"] for row in rows if row.get("note") == note)
        yield f"{', '.join(commits)}: {note}.\n"


def idle(rows: list[Row]) -> str:
    """How much of the CPU waiting servers used while another one ran, at most."""
    found = [row["waiting_cpu_s"] for row in rows if row.get("waiting_servers")]
    return (
        f" ({max(found):.2f} s of CPU time in all of them during one other's turn, at most)" if found else ""
    )


def table(rows: list[Row], document: Row) -> Iterator[str]:
    """Rows of a group, by the model's size and the load."""
    columns = DECODE if any("steady_tokens_per_s" in row for row in rows) else RATED
    names = ("model", "load", *columns)
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"
    loads = dict.fromkeys((row["model"], row["load"]) for row in rows)
    for model, load in sorted(loads, key=lambda each: SHAPES.index(each[0])):
        these = [row for row in rows if (row["model"], row["load"]) == (model, load)]
        for row in these:
            made = cells({**document, **row}, these)
            yield f"| {' | '.join([model, load, *(made[column] for column in columns)])} |"


def cells(row: Row, beside: list[Row]) -> dict[str, str]:
    """What each column says of a row. beside: rows of the same model and load."""
    rate = row.get("steady_tokens_per_s")
    dense = {each["kind"]: each.get("steady_tokens_per_s") for each in beside
             if each.get("commit", row["commit"]) == row["commit"]}  # fmt: skip
    return {
        "server": row["kind"],
        "at once": number(row.get("running"), 0),
        "steady tokens/s": number(rate, 0),
        "step ms": number(row.get("step_ms"), 2),
        "x default": ratio(rate, dense.get("flashinfer")),
        "x tensor cores": ratio(rate, dense.get("flashinfer-tc")),
        "token p50 ms": number(row.get("per_token_p50_ms"), 2),
        "token p95 ms": number(row.get("per_token_p95_ms"), 2),
        "first token p50 ms": number(row.get("first_token_p50_ms"), 0),
        "KV read of dense": share(row),
        "tokens/s in all": number(row.get("tokens_per_s"), 0),
        "commit": row["commit"],
    }


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def ratio(rate: float | None, dense: float | None) -> str:
    return "" if not rate or not dense else f"{rate / dense:.2f}"


def share(row: Row) -> str:
    """Part of the KV cache that decode steps read, by the backend's own counters."""
    found = row.get("counters")
    if not found or not row.get("dense_kv_bytes"):
        return ""
    return f"{found['kv_bytes'] / row['dense_kv_bytes']:.1%}"
