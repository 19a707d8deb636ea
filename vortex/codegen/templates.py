"""Renders kernel templates to readable Python files and imports them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2

from vortex.codegen.cache import load_source
from vortex.codegen.wrap import wrap

__all__ = ["functions_used", "load_source", "load_template", "render"]

TEMPLATES = Path(__file__).parent.parent / "templates"


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["wrap"] = wrap
    return made


def render(template: str, /, **values: Any) -> str:
    """The source of a template; a value that the template uses and the caller forgot is an error."""
    return _environment().get_template(template).render(**values)


def functions_used(templates: Iterable[str], lines: Iterable[str]) -> str:
    """The functions of some templates that code calls, directly or through one another, in their order there."""
    _, *texts = "\n".join(render(each) for each in templates).split("@triton.jit\n")
    bodies = {text.partition("(")[0].removeprefix("def "): f"@triton.jit\n{text.strip()}" for text in texts}
    called = _names("\n".join(lines)) & bodies.keys()
    waiting = list(called)
    while waiting:
        more = (_names(bodies[waiting.pop()]) & bodies.keys()) - called
        called |= more
        waiting += more
    return "\n\n\n".join(text for name, text in bodies.items() if name in called)


def _names(code: str) -> set[str]:
    return set(re.findall(r"\b(?<!\.)([a-z_]\w*)\(", code))


@lru_cache
def load_template(name: str) -> ModuleType:
    """A template without values as an imported module; one import a process."""
    return load_source(render(name), name.partition(".")[0])
