"""Renders kernel templates to readable Python files and imports them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2

from vortex.codegen.cache import load_source

__all__ = ["load_source", "load_template", "render"]

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
