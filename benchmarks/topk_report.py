"""The table and the plot of benchmarks/topk.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HEAD = (
    "rows x n -> k", "exact", "best launch", "stochastic 0.97", "the faster", "FlashInfer fused",
    "its `top_k`", "its best", "torch.topk", "ratio", "12 calls: exact", "FlashInfer fused", "ratio",
)  # fmt: skip
# What differs by less is not told apart by one run.
NOISE = 1.02
NAN = float("nan")


def best_of_flashinfer(us: dict[str, float], function: str = "top_k_page_table_transform") -> float:
    """The fastest of its algorithms; "top_k" counts both functions, also the one that translates no pages."""
    return min((time for name, time in us.items() if name.startswith(f"flashinfer {function}")), default=NAN)


def faster(us: dict[str, float]) -> str:
    if "stochastic" not in us:
        return "one kernel"
    if max(us["exact"], us["stochastic"]) <= NOISE * min(us["exact"], us["stochastic"]):
        return "equal"
    return "exact" if us["exact"] < us["stochastic"] else "stochastic"


def bars(points: dict[str, dict[str, float]]) -> list[str]:
    """Which of the aims hold, and where not."""
    ratio = {point: best_of_flashinfer(us) / us["exact"] for point, us in points.items()}
    drawn = {
        point: best_of_flashinfer(us) / us.get("stochastic", us["exact"]) for point, us in points.items()
    }
    slow = [f"{point} ({each:.2f})" for point, each in ratio.items() if not each >= 1]
    aims = {
        p: r
        for p, r in ratio.items()
        if p.split(" x ")[1] in ("2048 -> 125", "8192 -> 125") and p[:2] != "8 "
    }
    short = [f"{point} ({each:.2f})" for point, each in aims.items() if not each >= 1.5]
    over = [
        f"{point} ({us['stochastic']:.1f} against {us['exact']:.1f})"
        for point, us in points.items()
        if us.get("stochastic", 0) > NOISE * us["exact"]
    ]
    mean = sum(drawn.values()) / max(len(drawn), 1)
    won = [point for point, us in points.items() if faster(us) == "stochastic"]
    return [
        "* Exact at least as fast as FlashInfer's best with page translation: "
        f"{len(ratio) - len(slow)} of {len(ratio)} points"
        + (f", not at {'; '.join(slow)}." if slow else "."),
        f"* 1.5 times at 128 and 512 rows of 2,048 and 8,192, k = 125: {len(aims) - len(short)} of {len(aims)}"
        + (f", not at {'; '.join(short)}." if short else "."),
        f"* Stochastic against the best of both functions of FlashInfer: {mean:.2f} times on average (the aim is 1.5).",
        f"* Stochastic slower than exact by more than {NOISE - 1:.0%}: "
        + ("; ".join(over) or "nowhere")
        + ".",
        f"* Stochastic faster by more than {NOISE - 1:.0%}: {'; '.join(won) or 'nowhere'}. `one kernel`: it runs the "
        "exact kernel, which takes as long as a sampling one; nothing is won there.",
    ]


def table(results: dict[str, Any]) -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    points = {point: us for point, us in results["points"].items() if "exact" in us}
    for point, us in points.items():
        best = next((name for name in us if name.startswith("exact, ")), "exact")
        other = best_of_flashinfer(us)
        many, many_other = us.get("many exact", NAN), us.get("many flashinfer", NAN)
        lines.append(
            f"| {point} | {us['exact']:.1f} | {best.partition(', ')[2] or 'default'} {us[best]:.1f} "
            f"| {us.get('stochastic', us['exact']):.1f} | {faster(us)} "
            f"| {us.get('flashinfer top_k_page_table_transform auto', NAN):.1f} "
            f"| {us.get('flashinfer top_k auto', NAN):.1f} | {other:.1f} "
            f"| {us.get('torch.topk', NAN):.1f} | {other / us['exact']:.2f} "
            f"| {many:.2f} | {many_other:.2f} | {many_other / many:.2f} |"
        )
    lines += [
        "",
        "Microseconds, graphs of all sides replayed in turns. Exact: default launch. Its best: FlashInfer's fused "
        "function in its default and both forced algorithms. Ratio: that over exact. 4 calls in a graph, whose "
        "own cost hides part of the smallest ones, and 12, as in a model.",
        "",
        *bars(points),
        "",
    ]
    for kind, us in results["distributions"].items():
        lines.append(f"* {kind}: " + ", ".join(f"{point} {t:.1f}" for point, t in us.items()))
    lines += ["", "Our launches against each other:", ""]
    for point, us in results.get("launches", {}).items():
        lines.append(f"* {point}: " + ", ".join(f"{name} {t:.1f}" for name, t in us.items()))
    lines += [
        "",
        f"{results['device']}; {results['versions']}; commit {results['commit']}; "
        f"{results.get('inputs', 4)} inputs a graph.",
    ]
    return "\n".join(lines) + "\n"


def plot(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = {point: us for point, us in results["points"].items() if "exact" in us}
    series = {
        "exact": "exact",
        "stochastic 0.97": "stochastic",
        "FlashInfer, fused": "flashinfer top_k_page_table_transform auto",
        "torch.topk": "torch.topk",
    }
    figure, axes = pyplot.subplots(figsize=(12, 5))
    for at, (label, name) in enumerate(series.items()):
        heights = [
            results["points"][point].get(name, results["points"][point].get("exact", 0.0)) for point in points
        ]
        axes.bar([x + 0.2 * at for x in range(len(points))], heights, width=0.2, label=label)
    axes.set_yscale("log")
    axes.set_ylabel("microseconds")
    axes.set_xticks([x + 0.3 for x in range(len(points))], list(points), rotation=60, ha="right")
    axes.set_title(f"Top-k with page translation, {results['device']}")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
