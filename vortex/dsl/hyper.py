"""Checks the hyper-parameters of a flow and applies overrides to them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from vortex.dsl.diagnostics import nearest
from vortex.dsl.flow import POLICY, own_attributes, vFlow
from vortex.dsl.ir import Policy
from vortex.dsl.policy import Budget, Layers, PolicyError
from vortex.dsl.trace import sentence

Report = Callable[..., None]
"""report(slug, key, **facts): key says which attribute the finding points at."""


def overridden(flow: type[vFlow], overrides: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Override values, converted to the kind of value each attribute has."""
    own = own_attributes(flow)
    known = (*POLICY, *own)
    values: dict[str, Any] = {}
    for key, given in overrides.items():
        if key not in known:
            report(
                "unknown-key",
                key,
                key=key,
                flow=flow.__name__,
                near=nearest(key, known),
                names=", ".join(known),
            )
            continue
        if key in POLICY:
            values[key] = converted(given)
            continue
        value = converted(given) if not isinstance(own[key], str) else given
        if isinstance(value, int) and type(own[key]) is float:
            value = float(value)
        if _kind(value) != _kind(own[key]) and own[key] is not None:
            report(
                "bad-value", key, key=key, value=repr(given), wanted=_kind(own[key]), example=repr(own[key])
            )
            continue
        values[key] = value
    return values


def converted(given: Any) -> Any:
    """A string from a command line as the value it spells: a number, a boolean, a tuple or list; else the string."""
    if not isinstance(given, str):
        return given
    text = given.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return given
    return value if isinstance(value, int | float | tuple | list) else given


def _kind(value: object) -> str:
    """How a message names the kind of a hyper-parameter's value."""
    names = {bool: "True or False", int: "an integer", float: "a number", str: "a string",
             tuple: "a sequence", list: "a sequence"}  # fmt: skip
    return names.get(type(value), f"a {type(value).__name__}")


def check_policy(
    flow: type[vFlow], values: Mapping[str, Any], layers: int | None, report: Report
) -> Policy | None:
    """The policy that a flow asks for, or None when something in it is wrong.

    layers  of the model, where one is known: layer numbers are checked against it
    """
    given = {name: values.get(name, getattr(flow, name)) for name in POLICY}
    wrong = False

    def refuse(slug: str, at: str, **facts: Any) -> None:
        nonlocal wrong
        wrong = True
        report(slug, at, **facts)

    size = given["block_size"]
    if not _integer(size) or not 1 <= size <= 1024 or size & (size - 1):
        refuse("block-size", "block_size", value=repr(size))
    for key in ("sink_blocks", "recent_blocks"):
        if not _integer(given[key]) or given[key] < 0:
            refuse("bad-value", key, key=key, value=repr(given[key]), wanted="a number of blocks", example=1)
    for key in ("reuse_steps", "reuse_layers"):
        if not _integer(given[key]) or given[key] < 1:
            refuse("bad-value", key, key=key, value=repr(given[key]), wanted="a positive integer", example=1)
    if given["share_heads"] not in (False, "sum", "mean", "max") or (
        given["share_heads"] == 0 and not isinstance(given["share_heads"], bool)
    ):
        refuse("bad-value", "share_heads", key="share_heads", value=repr(given["share_heads"]),
               wanted='False, "sum", "mean" or "max"', example='"mean"')  # fmt: skip
    below = given["dense_below"]
    if below != "auto" and (not _integer(below) or below < 0):
        refuse("bad-value", "dense_below", key="dense_below", value=repr(below),
               wanted='a number of tokens or "auto"', example=4096)  # fmt: skip
    _check_expression("budget", "budget", Budget.parse, given["budget"], refuse)
    _check_expression(
        "layers", "dense_layers", lambda text: _layers(text, layers), given["dense_layers"], refuse
    )
    if wrong:
        return None
    layers_given = given["dense_layers"]
    listed = layers_given if isinstance(layers_given, str) else str(Layers.parse(layers_given))
    return Policy(**{**given, "budget": str(given["budget"]), "dense_layers": listed})


def _layers(text: Any, layers: int | None) -> None:
    parsed = Layers.parse(text)
    if layers is not None:
        parsed.numbers(layers)


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_expression(slug: str, key: str, parse: Callable[[Any], Any], value: Any, refuse: Report) -> None:
    # Reading an expression loads a parser; the defaults are known to be right and do without.
    if isinstance(value, str) and value == getattr(Policy, key):
        return
    try:
        parse(value)
    except PolicyError as error:
        span = (error.start, error.end) if isinstance(value, str) else None
        refuse(slug, key, text=repr(value), error=error.message, remedy=sentence(error.remedy), span=span)
