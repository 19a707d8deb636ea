"""`vortex serve FILE --model-path …`: an SGLang server whose decode steps run a flow."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from vortex.cli.console import fail
from vortex.cli.report import program_of
from vortex.cli.settings import FILE_HELP, SetOption, overrides
from vortex.dsl.target import split_target

BACKEND, DECODE = "--attention-backend", "--decode-attention-backend"


def serve_command(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help=FILE_HELP)],
    settings: Annotated[list[str] | None, SetOption] = None,
) -> None:
    """Serve a model with SGLang, decoding with an algorithm.

    All other arguments are SGLang's: `vortex serve quest.py --model-path Qwen/Qwen3-1.7B --port 30000`.
    """
    arguments = backend_chosen(context.args)
    given = overrides(settings or ())
    program = program_of(file, given)
    name = split_target(file)[1]
    os.environ["VORTEX_ALGORITHM"] = os.path.abspath(program.file) + (f":{name}" if name else "")
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
