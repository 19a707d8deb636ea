"""Renders kernel templates to readable Python files and imports them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2

TEMPLATES = Path(__file__).parent.parent / "templates"


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, /, **values: Any) -> str:
    """The source of a template; a value that the template uses and the caller forgot is an error."""
    return _environment().get_template(template).render(**values)


@lru_cache
def load_template(name: str) -> ModuleType:
    """A template without values as an imported module; one import a process."""
    return load_source(render(name), name.partition(".")[0])


@lru_cache(maxsize=1)
def _folder() -> Path:
    """A folder of this process alone: Triton reads kernels back from their files."""
    return Path(tempfile.mkdtemp(prefix="vortex-kernels-"))


def load_source(source: str, stem: str) -> ModuleType:
    """Imports kernel source from a file that only this user can write."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    path = _folder() / f"{stem}_{digest}.py"
    path.write_text(source)
    os.chmod(path, 0o600)
    spec = importlib.util.spec_from_file_location(f"vortex_kernels.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import generated kernels from {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
