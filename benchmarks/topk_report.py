"""The table and the plot of benchmarks/topk.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def table(results: dict[str, Any]) -> str:
    head = [
        "rows x n -> k",
        "exact",
        "launch",
        "stochastic",
        "FlashInfer fused",
        "its best",
        "torch.topk",
        "ratio",
        "12 calls: exact",
        "FlashInfer fused",
        "ratio",
    ]
    nan = float("nan")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for point, us in results["points"].items():
        ours = {name: t for name, t in us.items() if name.startswith("ours")}
        fused = {name: t for name, t in us.items() if name.startswith("flashinfer top_k_page_table")}
        best = min(ours, key=lambda name: ours[name])
        other = min(fused.values(), default=nan)
        lines.append(
            f"| {point} | {us['ours default']:.1f} ({ours[best]:.1f}) | {best[5:]} "
            f"| {us.get('stochastic', 0):.1f} "
            f"| {fused.get('flashinfer top_k_page_table_transform auto', nan):.1f} | {other:.1f} "
            f"| {us.get('torch.topk', 0):.1f} | {other / us['ours default']:.2f} "
            f"| {us.get('many ours', nan):.2f} | {us.get('many flashinfer', nan):.2f} "
            f"| {us.get('many flashinfer', nan) / us.get('many ours', nan):.2f} |"
        )
    lines += [
        "",
        "Microseconds. Exact: default launch (best variant). Ratio: FlashInfer's best over our default. 4 calls in a "
        "graph, whose own cost hides part of the smallest ones, and 12, as in a model.",
        "",
    ]
    for kind, us in results["distributions"].items():
        lines.append(f"* {kind}: " + ", ".join(f"{point} {t:.1f}" for point, t in us.items()))
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

    points = list(results["points"])
    series = {
        "exact": "ours default",
        "stochastic 0.97": "stochastic",
        "FlashInfer, fused": "flashinfer top_k_page_table_transform auto",
        "torch.topk": "torch.topk",
    }
    figure, axes = pyplot.subplots(figsize=(12, 5))
    for at, (label, name) in enumerate(series.items()):
        heights = [results["points"][point].get(name, 0.0) for point in points]
        axes.bar([x + 0.2 * at for x in range(len(points))], heights, width=0.2, label=label)
    axes.set_yscale("log")
    axes.set_ylabel("microseconds")
    axes.set_xticks([x + 0.3 for x in range(len(points))], points, rotation=60, ha="right")
    axes.set_title(f"Top-k with page translation, {results['device']}")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
