"""A benchmark's figures as a table and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

COLUMNS = ("flow", "batch", "context", "attended", "step us", "bound us", "x bound", "dense us", "speed-up", "at most",
           "auto us", "auto/dense", "auto is")  # fmt: skip
BYTES = ("flow", "batch", "context", "attended", "entries MB", "KV MB", "dense MB", "at most")


def table(rows: Sequence[dict[str, Any]], measured: bool) -> Table:
    names = COLUMNS if measured else BYTES
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        made.add_column(name, justify="left" if name in ("flow", "auto is") else "right", no_wrap=True)
    for row in rows:
        made.add_row(*(_measured(row) if measured else _bytes(row)))
    return made


def _start(row: dict[str, Any]) -> list[str]:
    return [row["flow"], str(row["batch"]), f"{row['context']:,}", f"{row['attended']} of {row['blocks']}"]


def _bytes(row: dict[str, Any]) -> list[str]:
    sizes = [f"{row['bytes'][name] / 1e6:.2f}" for name in ("entries", "kv", "dense")]
    return [*_start(row), *sizes, f"{row['speedup_bound']:.2f}"]


def _measured(row: dict[str, Any]) -> list[str]:
    dense = row["dense_us"][row["fastest_dense"]]["median"]
    auto = row["auto"]
    sparse = ["all dense", f"{row['bound_us']['step']:.1f}", ""]
    speedup = ""
    if "step_us" in row:
        median = row["step_us"]["median"]
        sparse = [f"{median:.1f}", f"{row['bound_us']['step']:.1f}", f"{row['over_bound']:.2f}"]
        speedup = f"{row['speedup']:.2f}"
    chosen = [f"{auto['us']['median']:.1f}", f"{auto['over_dense']:.3f}", auto["chosen"].partition(" (")[0]]
    return [*_start(row), *sparse, f"{dense:.1f}", speedup, f"{row['speedup_bound']:.2f}", *chosen]


def parts(row: dict[str, Any]) -> Table:
    """The kernels of one point."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("kernel", "us", "spread", "MB", "TB/s"):
        made.add_column(name, justify="left" if name == "kernel" else "right", no_wrap=True)
    timed = dict(row.get("parts_us", {}))
    if "step_us" in row:
        timed["whole step of a layer"] = row["step_us"]
    timed |= {f"dense: {label}": each for label, each in row["dense_us"].items()}
    for name, each in timed.items():
        size, rate = each.get("bytes"), each.get("bytes_per_s")
        made.add_row(
            name, f"{each['median']:.2f}", f"{each['low']:.2f} to {each['high']:.2f}",
            "" if size is None else f"{size / 1e6:.1f}", "" if rate is None else f"{rate / 1e12:.2f}",
        )  # fmt: skip
    return made


def summary(document: dict[str, Any]) -> list[str]:
    """What a reader asks first: the bandwidth, the dense kernel, the worst `auto`."""
    lines = [f"{document['device']}, copy {document['copy_bytes_per_s'] / 1e12:.2f} TB/s"]
    rows = document["points"]
    if rows:
        names = sorted({row["fastest_dense"] for row in rows})
        lines.append(f"fastest dense: {'; '.join(names)}")
        worst = max(rows, key=lambda row: row["auto"]["over_dense"])
        lines.append(
            f"auto against dense, at worst: {worst['auto']['over_dense']:.3f} "
            f"({worst['flow']}, batch {worst['batch']}, {worst['context']:,} tokens)"
        )
    if document["skipped"]:
        lines.append(f"{len(document['skipped'])} points are not measured: see skipped")
    return lines


def plot(document: dict[str, Any], path: Path) -> None:
    """Time of a layer against context: dense, sparse, auto and byte bounds; a panel for each flow and batch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = document["points"]
    panels = sorted({(row["flow"], row["budget"], row["batch"]) for row in rows})
    if not panels:
        return
    wide = min(len(panels), 4)
    figure, axes = pyplot.subplots(-(-len(panels) // wide), wide, squeeze=False, layout="constrained",
                                   figsize=(4.2 * wide, 3.4 * -(-len(panels) // wide)))  # fmt: skip
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        own = [row for row in rows if (row["flow"], row["budget"], row["batch"]) == panel]
        _panel(axis, sorted(own, key=lambda row: row["context"]), panel)
    axes.flat[0].legend(fontsize=7)
    figure.suptitle(f"One layer's attention in a decode step, {document['device']}")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _panel(axis: Any, rows: Sequence[dict[str, Any]], panel: tuple[str, str, int]) -> None:
    flow, budget, batch = panel
    contexts = [row["context"] for row in rows]
    dense = [row["dense_us"][row["fastest_dense"]]["median"] for row in rows]
    axis.plot(contexts, dense, "o-", label="dense, fastest kernel", color="tab:gray")
    some = [row for row in rows if "step_us" in row]
    axis.plot(
        [row["context"] for row in some], [row["step_us"]["median"] for row in some], "o-", label="sparse"
    )
    axis.plot(contexts, [row["auto"]["us"]["median"] for row in rows], "k:", label="auto")
    axis.plot(
        contexts,
        [row["bound_us"]["step"] for row in rows],
        "--",
        color="tab:blue",
        lw=0.8,
        label="byte bound",
    )
    axis.plot(contexts, [row["bound_us"]["dense"] for row in rows], "--", color="tab:gray", lw=0.8)
    below = rows[0]["auto"]["dense_below"]
    if below:
        axis.axvline(below, color="tab:red", lw=0.8, label="dense_below")
    axis.set(title=f"{flow}, budget {budget}, batch {batch}", xscale="log", yscale="log", xlabel="tokens",
             ylabel="us")  # fmt: skip
    axis.set_xticks(contexts, [f"{context // 1024}K" for context in contexts])
    axis.minorticks_off()
