"""Renders a kernel template to a readable file in the user's cache and imports it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType


def power_of_two(value: int) -> int:
    """The smallest one that is not below `value`: what a Triton tile is made of."""
    return 1 << (value - 1).bit_length()


def cache_folder(*parts: str) -> Path:
    """A folder of the user's cache, created private; refused where someone else owns it."""
    from platformdirs import user_cache_path

    folder = user_cache_path("vortex").joinpath(*parts)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user: code is not imported from there")
    folder.chmod(0o700)
    return folder


def write_private(path: Path, text: str) -> None:
    """Writes a file that is whole at any moment, also with several writers."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(name, path)


def render(template: str, **options: object) -> str:
    """The source that a template in `vortex/templates` becomes; a missing option is an error."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("vortex", "templates"), undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template(template).render(**options)


@cache
def load(template: str, **options: object) -> ModuleType:
    """The module that a template becomes, named and stored by the hash of its source."""
    text = render(template, **options)
    name = f"vortex_{template.split('.')[0]}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    path = cache_folder("kernels") / f"{name}.py"
    if not path.exists() or path.read_text() != text:
        write_private(path, text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
