"""`vortex compile FILE --emit KIND`: what a file becomes, on stdout or in a folder with a manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import vortex
from vortex.cli.console import fail
from vortex.cli.report import program_of
from vortex.cli.settings import FILE_HELP, MODEL_HELP, SetOption, overrides, shape_of
from vortex.codegen.cache import versions
from vortex.dsl.ir import Program
from vortex.dsl.text import print_program

SCHEMA_VERSION = 1
"""Version of the manifest."""


def _ir(program: Program) -> dict[str, str]:
    return {"ir.txt": print_program(program)}


def _plan(program: Program) -> dict[str, str]:
    from vortex.cli.policy import show_policy
    from vortex.codegen.build import build
    from vortex.codegen.show import show_plan

    return {"plan.txt": f"{show_policy(program)}\n{show_plan(build(program))}"}


def _kernels(program: Program) -> dict[str, str]:
    from vortex.codegen.build import build

    return {f"{kernel.name}.py": kernel.source for kernel in build(program).kernels}


def _all(program: Program) -> dict[str, str]:
    return {**_ir(program), **_plan(program), **_kernels(program)}


EMIT: dict[str, Callable[[Program], Mapping[str, str]]] = {
    "ir": _ir,
    "plan": _plan,
    "kernels": _kernels,
    "all": _all,
}
"""Kind -> function from a program to file names and their texts."""


def compile_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help=FILE_HELP)],
    emit: Annotated[str, typer.Option(help=f"What to write: {', '.join(EMIT)}.", metavar="KIND")],
    out: Annotated[
        Path | None, typer.Option(help="Write files and a manifest here instead of to stdout.", metavar="DIR")
    ] = None,
    settings: Annotated[list[str] | None, SetOption] = None,
    model: Annotated[str | None, typer.Option(help=MODEL_HELP, metavar="NAME|DIR")] = None,
) -> None:
    """Write what an algorithm file becomes on its way to kernels."""
    if emit not in EMIT:
        raise typer.BadParameter(f"--emit {emit}: known are {', '.join(EMIT)}")
    given, shape = overrides(settings or ()), shape_of(model)
    program = program_of(file, given, shape)
    files = EMIT[emit](program)
    if out is None:
        typer.echo("\n".join(files.values()), nl=False)
        return
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "vortex": vortex.__version__,
        "versions": dict(versions()),
        "flow": program.name,
        "source": {"path": program.file, "sha256": _hash(Path(program.file).read_bytes())},
        "options": {"emit": emit, "set": given, "shape": asdict(shape)},
        "files": {name: _hash(text.encode()) for name, text in files.items()},
    }
    _write(out, {**files, "manifest.json": json.dumps(manifest, indent=2) + "\n"})


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(folder: Path, files: Mapping[str, Any]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"--out {folder}: {error.strerror or error}")
    for name in files:
        typer.echo(folder / name)
