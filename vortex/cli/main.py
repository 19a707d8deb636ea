"""The `vortex` command: which commands there are, and how any of them may end early."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import vortex
from vortex.cli.console import CLOSED, INTERRUPTED, fail
from vortex.dsl.diagnostics import nearest

COMMANDS = {
    "run": "vortex.cli.run:run_command",
    "serve": "vortex.cli.serve:serve_command",
    "check": "vortex.cli.check:check_command",
    "compile": "vortex.cli.compile:compile_command",
    "tune": "vortex.cli.tune:tune_command",
    "new": "vortex.cli.new:new_command",
    "ops": "vortex.cli.ops:ops_command",
    "algorithms": "vortex.cli.algorithms:algorithms_command",
    "bench": "vortex.cli.bench:bench_command",
    "bytes": "vortex.cli.bytes:bytes_command",
    "cache": "vortex.cli.cache:cache_command",
    "doctor": "vortex.cli.doctor:doctor_command",
}
"""Name -> where its function is. A module is imported when its command is asked for: starting stays fast."""

PASSING_ON = {"serve": {"allow_extra_args": True, "ignore_unknown_options": True}}
"""Commands that hand arguments they do not know to another program."""

SETTING = re.compile(r"[^\W\d]\w*=")


MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors that are the machine's: a full disk, a quota, a file system that is only read."""


class Command(TyperCommand):
    """Lets one `--set` take several values: `--set budget=64 block_size=32`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(spread(args)))


def spread(args: Sequence[str]) -> Iterator[str]:
    """Arguments with a `--set` before each value that follows one."""
    setting = False
    for before, word in zip(("", *args), args, strict=False):
        if before != "--set" and setting:
            setting = SETTING.match(word) is not None
            if setting:
                yield "--set"
        setting = setting or word == "--set"
        yield word


class Commands(TyperGroup):
    """Loads a command when it is called; a closed pipe or Ctrl-C ends it without a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}.{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name].split(":")
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name, cls=Command, context_settings=PASSING_ON.get(cmd_name))(
            getattr(import_module(module), function)
        )
        return typer.main.get_command(single)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _drop_output()
            raise typer.Exit(CLOSED) from None
        except OSError as error:
            if error.errno not in MACHINE:
                raise
            _drop_output()
            fail(f"{error.filename or 'the output'} cannot be written: {error.strerror}")


def _drop_output() -> None:
    """What is still buffered would fail once more when Python flushes it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=Commands, add_completion=False, no_args_is_help=True, rich_markup_mode=None,
    pretty_exceptions_enable=False,
)  # fmt: skip


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"vortex {vortex.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Sparse attention as a Python class of a few lines.

    Exit codes: 0 fine, 1 the algorithm file has errors, 2 bad usage.
    """


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A locale that lacks a character shows its number; the report goes on.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
