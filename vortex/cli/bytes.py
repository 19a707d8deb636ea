"""`vortex bytes MODEL`: what a decode step reads, what sparsity can save, and where the two kinds cross."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import typer
from rich.table import Table

from vortex.bench import account
from vortex.bench.account import (
    AccountError,
    Bits,
    Costs,
    KVSparsity,
    ProjectionSparsity,
    Reads,
    Step,
    nearest,
)
from vortex.bench.models import ModelError, load_model
from vortex.cli.console import wide_console

SCHEMA_VERSION = 1
CONTEXTS = "512,4096,32768,131072"
NOTHING, HALF, SIXTEEN = Fraction(0), Fraction(1, 2), Fraction(16)
PARTS = ("mlp", "attention", "kv", "entries", "other")


@dataclass(frozen=True)
class Question:
    """One call of the command, read."""

    step: Step
    kv: KVSparsity
    projection: ProjectionSparsity
    contexts: tuple[int, ...]
    costs: Costs | None


def number(value: str | Fraction) -> Fraction:
    """An exact number from text such as 0.3 or 30%."""
    if isinstance(value, Fraction):
        return value
    text = value.strip()
    digits = text.removesuffix("%")
    if len(digits) > 20 or not digits.isascii() or not digits.replace(".", "", 1).isdecimal():
        raise typer.BadParameter(f"a number such as 0.3 or 30% is expected, got {value!r}")
    return Fraction(digits) / (100 if text.endswith("%") else 1)


def _option(text: str, shown: str | None = None) -> Any:
    return typer.Option(help=text, parser=number, metavar="NUMBER", show_default=shown or False)


def bytes_command(
    model: Annotated[str, typer.Argument(help="A model's name, its folder, or its config.json.")],
    context: Annotated[str, typer.Option(help="Tokens of each request, separated by commas.")] = CONTEXTS,
    keep_kv: Annotated[Fraction | None, _option("Share of K and V that is read.", "0.3")] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(help="Tokens of K and V read, in place of a share.")
    ] = None,
    keep_projection: Annotated[Fraction, _option("Share of the channels one request reads.", "0.5")] = HALF,
    mlp_only: Annotated[bool, typer.Option("--mlp-only", help="Keep q, k, v and o dense.")] = False,
    union: Annotated[
        Fraction | None,
        _option("Measured share of the channels that the batch reads.", "independent choices"),
    ] = None,
    batch: Annotated[int, typer.Option(help="Requests of the step.")] = 1,
    weight_bits: Annotated[Fraction, _option("Bits of an element of the projections.", "16")] = SIXTEEN,
    kv_bits: Annotated[Fraction, _option("Bits of an element of K and V.", "16")] = SIXTEEN,
    other_bits: Annotated[Fraction, _option("Bits of an element of all other weights.", "16")] = SIXTEEN,
    block_size: Annotated[int, typer.Option(help="Tokens of a block, for the entries.")] = 16,
    entry_width: Annotated[
        int | None, typer.Option(help="Elements of a block's entries per KV head: head_dim for centroids.")
    ] = None,
    entry_bits: Annotated[Fraction, _option("Bits of an element of an entry.", "16")] = SIXTEEN,
    entry_bytes: Annotated[
        Fraction | None, _option("Bytes of entries per token and KV head, in place of a width.")
    ] = None,
    bandwidth: Annotated[
        Fraction | None, _option("Measured GB/s: adds byte bounds and the crossing of measured kernels.")
    ] = None,
    kv_cost: Annotated[Fraction, _option("Measured us a layer that sparse attention adds.", "0")] = NOTHING,
    projection_cost: Annotated[
        Fraction, _option("Measured us a layer that sparse projections add.", "0")
    ] = NOTHING,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bytes a decode step reads, the ideal speed-up of sparse KV and projections, and where they cross."""
    try:
        if entry_width is not None and entry_bytes is not None:
            raise AccountError("give --entry-width or --entry-bytes, not both")
        if bandwidth is None and (kv_cost or projection_cost):
            raise AccountError("a cost in us needs --bandwidth to be weighed against bytes")
        if keep_kv is None and kv_tokens is None:
            keep_kv = Fraction("0.3")
        widths = [] if entry_width is None else [entry_width]
        entries = account.entry_bytes(block_size, widths, entry_bits) if entry_bytes is None else entry_bytes
        question = Question(
            Step(load_model(model), Bits(weight_bits, kv_bits, other_bits), batch),
            KVSparsity(keep_kv, kv_tokens, entries),
            ProjectionSparsity(keep_projection, not mlp_only, union),
            _contexts(context),
            None if bandwidth is None else Costs(bandwidth * 10**9, kv_cost, projection_cost),
        )
        report = answer(question)
    except (AccountError, ModelError) as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)


def answer(question: Question) -> dict[str, Any]:
    """The report as JSON prints it: bytes and tokens are the nearest integers, shares and speed-ups floats.

    A crossover of null means at no context, 0 at every context.
    """
    step, kv, projection, costs = question.step, question.kv, question.projection, question.costs
    rows = []
    for context in question.contexts:
        dense = step.reads(context)
        kinds = {
            "kv": step.reads(context, kv),
            "projection": step.reads(context, None, projection),
            "both": step.reads(context, kv, projection),
        }
        row: dict[str, Any] = {
            "context": context,
            "dense": _bytes(dense),
            "kv_share": float(dense.kv_share),
            "speedup": {name: float(dense.total / reads.total) for name, reads in kinds.items()},
            "sparse": {name: _bytes(reads) for name, reads in kinds.items()},
        }
        if costs:
            times = {"dense": dense, **kinds}
            row["bound_us"] = {
                name: float(reads.seconds(costs.bandwidth) * 10**6) for name, reads in times.items()
            }
        rows.append(row)
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "model": step.model.name,
        "batch": step.batch,
        "bits": {name: float(getattr(step.bits, name)) for name in ("weight", "kv", "other")},
        "keep_kv": None if kv.keep is None else float(kv.keep),
        "kv_tokens": kv.tokens,
        "entry_bytes_per_token": float(step.epsilon(kv)),
        "kv_bytes_per_token": float(step.kappa),
        "keep_projection": float(projection.keep),
        "projection_read_by_batch": float(projection.read(step.batch)),
        "projections": "mlp and attention" if projection.attention else "mlp",
        "crossover": _tokens(step.crossover(kv, projection)),
        "contexts": rows,
    }
    if costs:
        report["measured"] = {
            "bandwidth": float(costs.bandwidth),
            "kv_us_per_layer": float(costs.kv_us),
            "projection_us_per_layer": float(costs.projection_us),
            "crossover": _tokens(step.crossover(kv, projection, costs)),
            "kv_pays_from": _tokens(step.pays_from(kv, costs)),
        }
    return report


def _print(report: dict[str, Any]) -> None:
    console = wide_console()
    kept = f"{report['kv_tokens']} tokens" if report["keep_kv"] is None else f"{report['keep_kv']:g}"
    bits = report["bits"]
    console.print(
        f"{report['model']}, batch {report['batch']}, weights of {bits['weight']:g} bits, "
        f"KV of {bits['kv']:g} bits\n"
        f"KV kept: {kept}; projections kept ({report['projections']}): {report['keep_projection']:g}, "
        f"read by the batch: {report['projection_read_by_batch']:.3g}"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    heads = ("context", "MLP GB", "attn. GB", "KV GB", "other GB", "total GB", "KV share")
    for head in (*heads, "entries GB", "KV x", "proj. x", "both x"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in report["contexts"]:
        dense = {name: f"{row['dense'][name] / 1e9:.3f}" for name in (*PARTS, "total")}
        entries = f"{row['sparse']['kv']['entries'] / 1e9:.3f}"
        cells = [dense[name] for name in ("mlp", "attention", "kv", "other", "total")]
        speedups = [f"{row['speedup'][name]:.2f}" for name in ("kv", "projection", "both")]
        table.add_row(f"{row['context']:,}", *cells, f"{row['kv_share']:.1%}", entries, *speedups)
    console.print(table)
    where = _where(report["crossover"], "KV sparsity reads fewer bytes than projection sparsity")
    console.print(where, soft_wrap=True)
    if "measured" in report:
        measured = report["measured"]
        where = _where(measured["crossover"], "With the measured costs, KV sparsity is the faster of the two")
        console.print(where, soft_wrap=True)
        where = _where(measured["kv_pays_from"], "KV sparsity is faster than dense attention")
        console.print(where, soft_wrap=True)


def _where(tokens: int | None, what: str) -> str:
    if tokens is None:
        return f"{what} at no context."
    return f"{what} from {tokens:,} tokens." if tokens else f"{what} at every context."


def _bytes(reads: Reads) -> dict[str, int]:
    return {name: nearest(getattr(reads, name)) for name in (*PARTS, "total")}


def _tokens(value: Fraction | None) -> int | None:
    return None if value is None else nearest(value)


def _contexts(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and part.isascii() and len(part) < 12 for part in parts):
        raise AccountError(f"--context: tokens separated by commas are expected, got {text!r}")
    return tuple(int(part) for part in parts)
