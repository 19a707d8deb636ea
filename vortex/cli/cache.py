"""`vortex cache`: what Vortex keeps in the user's cache folder, and clearing it."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vortex.cli.console import fail
from vortex.codegen.comments import safe_comment
from vortex.settings import SettingError, settings

if TYPE_CHECKING:
    from vortex.codegen.cache import Kept

SCHEMA_VERSION = 1


def cache_folder() -> Path:
    """Where everything is kept; it need not exist."""
    try:
        return settings().cache_dir
    except SettingError as error:
        fail(str(error))


def kinds() -> dict[str, tuple[int, int]]:
    """Kind of what is kept (`kernels`, `models`, …) -> number of files, bytes."""
    folder = cache_folder()
    found = {}
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        if each.is_dir() and not each.is_symlink():
            sizes = [file.lstat().st_size for file in each.rglob("*") if file.is_file()]
            found[each.name] = (len(sizes), sum(sizes))
    return found


def size(count: int) -> str:
    """Bytes for people: 1.2 GB."""
    value, units = float(count), ["GB", "MB", "kB", "B"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop()
    return f"{value:.3g} {units[-1]}"


def modules() -> list[Kept]:
    """Generated kernels and the flows they were made for, the last used first."""
    from vortex.codegen.cache import KernelCache
    from vortex.codegen.folder import CacheError

    try:
        return KernelCache(cache_folder() / "kernels").entries()
    except (CacheError, SettingError) as error:
        fail(str(error))


def cache_command(
    kind: Annotated[str | None, typer.Argument(help="One kind alone, e.g. kernels.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Delete what is listed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what is kept in the cache folder, or clear it; `kernels` lists modules by flow.

    Everything in it is made again when it is needed.
    """
    found = kinds()
    if kind is not None and kind not in found:
        fail(f"the cache holds no {kind}; it holds {', '.join(found) or 'nothing'}")
    chosen = {name: sizes for name, sizes in found.items() if kind in (None, name)}
    listed_modules = modules() if kind == "kernels" else []
    for name in chosen if clear else ():
        try:
            shutil.rmtree(cache_folder() / name)
        except OSError as error:
            fail(f"{error.filename}: {error.strerror or error}")
    if as_json:
        listed = [{"kind": name, "files": files, "bytes": count} for name, (files, count) in chosen.items()]
        document = {"schema_version": SCHEMA_VERSION, "folder": str(cache_folder()), "cleared": clear,
                    "kinds": listed, "modules": [asdict(each) for each in listed_modules]}  # fmt: skip
        typer.echo(json.dumps(document, indent=2))
        return
    typer.echo(cache_folder())
    for name, (files, count) in chosen.items():
        typer.echo(f"  {name:10} {files:6} files  {size(count):>8}" + ("  cleared" if clear else ""))
    for each in listed_modules:
        used = datetime.fromtimestamp(each.used).isoformat(" ", "minutes")
        typer.echo(f"    {each.key[:12]}  {size(each.bytes):>8}  used {used}  {safe_comment(each.flow)}")
    if not chosen:
        typer.echo("  empty")
