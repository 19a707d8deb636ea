"""`vortex ops`: the operators of the language, as they are declared."""

from __future__ import annotations

import inspect
import json
from typing import Annotated

import typer

import vortex.dsl.ops  # noqa: F401  (fills the registry)
from vortex.cli.console import fail
from vortex.dsl.diagnostics import nearest
from vortex.dsl.registry import OPERATORS, Operator

SCHEMA_VERSION = 1

AXES = {
    "elementwise": "operands aligned by axis name",
    "matmul": "contracts the last axis of a with the last but one of b",
    "reduce": "removes dim",
    "row": "along dim, which stays",
    "select": "an index set along dim",
    "shape": "named axes rearranged",
    "attention": "head, dim",
}
"""Family -> what its operators do to axes."""


def ops_command(
    name: Annotated[str | None, typer.Argument(help="Show this operator in full.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the operators of the language."""
    shown = [each for each in OPERATORS.values() if each.public and name in (None, each.name)]
    if not shown:
        near = nearest(str(name), (each.name for each in OPERATORS.values() if each.public))
        fail(f"no operator {name}.{near or ' `vortex ops` lists them all.'}")
    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "operators": [_fields(each) for each in shown]}
        typer.echo(json.dumps(document, indent=2))
    elif name is not None:
        typer.echo(f"{_call(shown[0])}\n{shown[0].family}: {AXES[shown[0].family]}\n\n{shown[0].doc}")
    else:
        _table(shown)


def _fields(each: Operator) -> dict[str, str]:
    return {
        "name": each.name,
        "family": each.family,
        "signature": _call(each),
        "axes": AXES[each.family],
        "doc": each.doc,
    }


def _call(each: Operator) -> str:
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in each.signature.parameters.values()
    ]
    return f"{each.name}{inspect.Signature(parameters)}"


def _table(shown: list[Operator]) -> None:
    width = max(len(_call(each)) for each in shown)
    for family in dict.fromkeys(each.family for each in shown):
        typer.echo(f"{family}: {AXES[family]}")
        for each in shown:
            if each.family == family:
                typer.echo(f"  {_call(each):{width}}  {each.doc.splitlines()[0]}")
