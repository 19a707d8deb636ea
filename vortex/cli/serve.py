"""`vortex serve FILE --model-path …`: an SGLang server whose decode steps run a flow."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from vortex.cli.console import fail, show
from vortex.cli.settings import SetOption, blamed, overrides, status
from vortex.dsl.check import Report, check

BACKEND, DECODE = "--attention-backend", "--decode-attention-backend"


def serve_command(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="An algorithm file, or file.py:Name.")],
    settings: Annotated[list[str] | None, SetOption] = None,
) -> None:
    """Serve a model with SGLang, decoding with an algorithm.

    All other arguments are SGLang's: `vortex serve quest.py --model-path Qwen/Qwen3-1.7B --port 30000`.
    """
    arguments = backend_chosen(context.args)
    given = overrides(settings or ())
    traced = check(file, given)
    report = blamed(Report(file, traced.findings), given)
    show(report.findings, sys.stderr)
    if traced.program is None:
        raise typer.Exit(status([report], given))
    os.environ["VORTEX_ALGORITHM"] = os.path.abspath(file)
    os.environ["VORTEX_SET"] = shlex.join(f"{key}={value}" for key, value in given.items())
    from vortex.engines.sglang.errors import StartError

    try:
        from vortex.engines.sglang.server import serve

        serve(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        fail(f"{package} is not installed: run `pip install 'vortex-attention[sglang]'`")
    except StartError as error:
        fail(str(error))


def backend_chosen(arguments: Sequence[str]) -> list[str]:
    """SGLang's arguments with the backend in them. Raises typer.BadParameter where they name another one."""
    given = {name: _value(arguments, name) for name in (BACKEND, DECODE)}
    decode = given[DECODE] or given[BACKEND]
    if decode not in (None, "vortex"):
        name = DECODE if given[DECODE] else BACKEND
        raise typer.BadParameter(f"{name} {decode}: `vortex serve` decodes with vortex; leave it out")
    return list(arguments) if decode else [BACKEND, "vortex", *arguments]


def _value(arguments: Sequence[str], name: str) -> str | None:
    """The last value that arguments give for a flag, as `--flag value` or `--flag=value`."""
    found = None
    for position, each in enumerate(arguments):
        if each == name and position + 1 < len(arguments):
            found = arguments[position + 1]
        elif each.startswith(f"{name}="):
            found = each.split("=", 1)[1]
    return found
