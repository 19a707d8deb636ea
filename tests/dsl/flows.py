"""Traces flows from a few lines of text, for tests of the language."""

from __future__ import annotations

import textwrap

from vortex.dsl.catalogue import CATALOGUE
from vortex.dsl.ir import Node, Program, Shape
from vortex.dsl.load import Traced, trace_source
from vortex.dsl.source import Source

SHAPE = Shape(query_heads=12, kv_heads=3, head_dim=8, layers=4)
"""head=4, dim=8; the block size of these flows is 4 unless they say otherwise."""


def flow_text(indexer: str = "return First(1)", cache: str = "", attributes: str = "block_size = 4") -> str:
    lines = ["from vortex import *", "", "class Flow(vFlow):"]
    lines += textwrap.indent(textwrap.dedent(attributes), "    ").splitlines()
    if cache:
        lines += ["    def forward_cache(c):", *textwrap.indent(textwrap.dedent(cache), " " * 8).splitlines()]
    lines += [
        "    def forward_indexer(q, c):",
        *textwrap.indent(textwrap.dedent(indexer), " " * 8).splitlines(),
    ]
    return "\n".join(lines) + "\n"


def trace_text(text: str, **overrides: object) -> Traced:
    return trace_source(Source("flow.py", textwrap.dedent(text)), overrides=overrides, shape=SHAPE)


def traced(text: str, **overrides: object) -> Program:
    """The program of a file without errors."""
    result = trace_text(text, **overrides)
    assert result.program is not None, result.errors
    return result.program


def slugs(text: str, **overrides: object) -> list[str]:
    """Entries of the catalogue that a file's findings belong to, lints included."""
    names = {kind.code: slug for slug, kind in CATALOGUE.items()}
    return [names[finding.code] for finding in trace_text(text, **overrides).findings]


def last_node(expression: str, cache: str = "", before: str = "") -> Node:
    """The node that an expression of the indexer becomes."""
    program = traced(flow_text(f"{before}\n_ = {expression}\nreturn First(1)", cache))
    return program.indexer.nodes[-2]


def typed(expression: str, cache: str = "", before: str = "") -> str:
    """The type of an expression of the indexer, as it prints."""
    return str(last_node(expression, cache, before).type)


def cached(expression: str) -> str:
    """The type of an expression of forward_cache, as it prints."""
    program = traced(flow_text(cache=f'c["x"] = {expression}'))
    return str(program.cache.nodes[program.cache.stores[0].value].type)


def refused(expression: str, cache: str = "", before: str = "") -> str:
    """The entry of the catalogue under which an expression of the indexer is refused."""
    (slug,) = slugs(flow_text(f"{before}\n_ = {expression}\nreturn First(1)", cache))
    return slug
