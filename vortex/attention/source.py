"""Renders a kernel template to a readable file in the user's cache and imports it."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from vortex.codegen.cache import load_source


def power_of_two(value: int) -> int:
    """The smallest one that is not below `value`: what a Triton tile is made of."""
    return 1 << (value - 1).bit_length()


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
    """The module that a template becomes, kept by the hash of its source."""
    return load_source(render(template, **options), template.split(".")[0])
