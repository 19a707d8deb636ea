"""`vortex algorithms`: the published methods that come with Vortex, and what each costs."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from vortex.cli.console import fail
from vortex.dsl.ir import Shape
from vortex.dsl.target import folder

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Described:
    """One algorithm file as it stands, at the default shape.

    what         first sentence of its docstring
    block_size   tokens of a block
    entry_bytes  bytes of the entries for each cached token and KV head, KV in bf16; K itself has 256
    kernels      kernels of each layer in a decode step: scores, and one for each selection
    state        whether it carries state from step to step
    parameters   whether it has Parameters, which a file must fill with trained or calibrated values
    """

    name: str
    path: str
    what: str
    block_size: int
    entry_bytes: float
    kernels: int
    state: bool
    parameters: bool


def describe(path: Path) -> Described:
    """Plans a file's kernels; none is written or compiled."""
    from vortex.codegen.build import Built, Options, entry_bytes
    from vortex.codegen.decompose import decompose
    from vortex.codegen.fuse import plan
    from vortex.codegen.simplify import optimise
    from vortex.dsl.load import trace_file

    program = trace_file(path, shape=Shape()).program
    if program is None:
        fail(f"{path} has errors: see `vortex check {path}`")
    block_size = program.policy.block_size
    program, _ = decompose(optimise(program)[0])
    planned = plan(program)
    built = Built(program, Options(), planned, (), ())
    size = sum(entry_bytes(built, entry.name) for entry in program.entries)
    shared = bool(program.policy.share_heads)
    return Described(
        name=path.stem,
        path=str(path),
        what=docstring(path).split("\n", 1)[0],
        block_size=block_size,
        entry_bytes=size / block_size,
        kernels=len(planned.steps) + shared,
        state=bool(program.states),
        parameters=bool(program.weights),
    )


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def algorithms_command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the algorithms that come with Vortex, and what each stores and launches."""
    try:
        where = folder()
    except FileNotFoundError as error:
        fail(str(error))
    found = [describe(path) for path in sorted(where.glob("*.py"))]
    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "algorithms": [asdict(each) for each in found]}
        typer.echo(json.dumps(document, indent=2))
        return
    typer.echo(f"{len(found)} algorithms in {where}; a name stands for its file: `vortex run quest`\n")
    width = max(len(each.name) for each in found)
    typer.echo(f"{'':{width}}  bytes  kernels  state  (entry bytes per token and KV head, kernels per layer)")
    for each in found:
        state = "state" if each.state else ""
        typer.echo(f"{each.name:{width}}  {each.entry_bytes:5g}  {each.kernels:7}  {state:5}  {each.what}")
