"""`vortex new NAME`: a commented file to start from, which passes check."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import Annotated

import typer

from vortex.cli.console import fail

STARTER = '''"""{name}: what it scores, and the paper it follows.

Formula: s_b = mean_h q_h . mean_(t in b) k_t; attend the blocks of largest s_b.
"""

from vortex import *


class {name}(vFlow):
    block_size = 16  # tokens of a block, a power of two
    budget = "max(32, 12.5% * blocks)"  # blocks attended in all; `--set budget=64` overrides it

    def forward_cache(c):
        # Runs once for each finished block: c["k"] and c["v"] are (1, token, dim).
        # What is assigned here is kept for every block; store little.
        c["mean"] = Mean(c["k"], dim="token")

    def forward_indexer(q, c):
        # Runs at each decode step: q is (1, head, dim), the query heads of one KV head;
        # c["mean"] is now (1, block, dim), the mean key of every finished block.
        s = GeMM(c["mean"], q.T)  # (1, block, head)
        i = topK(Mean(s, dim="head"), dim="block")  # fills the budget
        return attn(q, c["k"], c["v"], i)
'''


def new_command(
    name: Annotated[str, typer.Argument(help="Name of the class, e.g. MyMethod.")],
    folder: Annotated[Path, typer.Option("--in", help="Folder of the file.", metavar="DIR")] = Path("."),
) -> None:
    """Write a starter file NAME.py (my_method.py for MyMethod)."""
    if not name.isidentifier() or keyword.iskeyword(name) or name == "vFlow":
        raise typer.BadParameter(f"{name!r} is no name for a class; write for example MyMethod")
    path = folder / f"{_snake(name)}.py"
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        fail(f"{path} exists and is left as it is: choose another name")
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or error}")
    try:
        with file:
            file.write(STARTER.format(name=name))
    except OSError as error:
        path.unlink()  # half a file would be in the way of the next attempt
        fail(f"{path} cannot be written: {error.strerror or error}")
    typer.echo(path)


def _snake(name: str) -> str:
    """MyMethod -> my_method, NSATopK -> nsa_top_k."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
