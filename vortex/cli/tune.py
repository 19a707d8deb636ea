"""`vortex tune FILE`: measures schedules of a flow's kernels on this machine's GPU and keeps the fastest."""

from __future__ import annotations

from typing import Annotated

import typer

from vortex.cli.console import fail
from vortex.cli.report import program_of
from vortex.cli.settings import FILE_HELP, MODEL_HELP, SetOption, overrides, shape_of


def tune_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help=FILE_HELP)],
    settings: Annotated[list[str] | None, SetOption] = None,
    model: Annotated[str | None, typer.Option(help=MODEL_HELP, metavar="NAME|DIR")] = None,
    requests: Annotated[int, typer.Option(help="Requests of the batch to measure.", min=1)] = 16,
    tokens: Annotated[int, typer.Option(help="Tokens of each request.", min=1)] = 32768,
    kv_dtype: Annotated[str, typer.Option(help="bf16, fp16, fp32 or fp8.")] = "bf16",
) -> None:
    """Measure schedules of a flow's kernels on the GPU and keep the fastest for later runs."""
    given = overrides(settings or ())
    program = program_of(file, given, shape_of(model))
    from vortex.codegen.build import BuildError, Options

    try:
        options = Options(kv_dtype)
    except BuildError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        import torch
    except ImportError:
        fail("tune needs torch: install vortex-attention[cuda]")
    if not torch.cuda.is_available():
        fail(
            "tune measures on a CUDA device, and torch sees none here; without it the default schedules are used"
        )
    from vortex.codegen.tune import Tuner

    tuner = Tuner(program, options, requests, tokens, torch.device("cuda"))
    for tried in tuner.search():
        chosen = tried.schedule
        shown = (
            f"{tried.microseconds:8.2f} us" if tried.microseconds is not None else f"failed: {tried.failure}"
        )
        typer.echo(
            f"step {tried.step}: {chosen.tile} blocks, {chosen.warps} warps, {chosen.stages} stages  {shown}"
        )
    if not tuner.best():
        typer.echo("this flow has no kernel with a schedule to choose")
        return
    for step, best in tuner.best().items():
        typer.echo(f"step {step}: keeps {best.tile} blocks, {best.warps} warps, {best.stages} stages")
    typer.echo(tuner.keep())
