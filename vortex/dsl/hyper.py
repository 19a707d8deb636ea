"""Checks the hyper-parameters of a flow and applies overrides to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vortex.dsl.diagnostics import nearest
from vortex.dsl.flow import POLICY, own_attributes, vFlow
from vortex.dsl.ir import Policy
from vortex.dsl.policy import Budget, Layers, PolicyError

Report = Callable[..., None]
"""report(slug, key, **facts): key says which attribute the finding points at."""


def overridden(flow: type[vFlow], overrides: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Override values, converted to the kind of value each attribute has."""
    own = own_attributes(flow)
    known = (*POLICY, *own)
    values: dict[str, Any] = {}
    for key, given in overrides.items():
        if key not in known:
            report("unknown-key", key, key=key, flow=flow.__name__, near=nearest(key, known), names=", ".join(known))
            continue
        values[key] = converted(given, own.get(key, getattr(flow, key, None)))
    return values


def converted(given: Any, like: Any) -> Any:
    """A string from a command line as the kind of value that stands in the class; other values as they are."""
    if not isinstance(given, str):
        return given
    text = given.strip()
    if text in ("True", "False", "true", "false") and not isinstance(like, str):
        return text in ("True", "true")
    for kind in (int, float):
        if isinstance(like, str) and like and not like.isdigit():
            break
        try:
            return kind(text)
        except ValueError:
            continue
    return given


def check_policy(flow: type[vFlow], values: Mapping[str, Any], layers: int, report: Report) -> Policy | None:
    """The policy that a flow asks for, or None when something in it is wrong."""
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
        "layers", "dense_layers", lambda text: Layers.parse(text), given["dense_layers"], refuse
    )
    return None if wrong else Policy(**{**given, "budget": str(given["budget"])})


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_expression(slug: str, key: str, parse: Callable[[Any], Any], value: Any, refuse: Report) -> None:
    try:
        parse(value)
    except PolicyError as error:
        remedy = error.remedy[:1].upper() + error.remedy[1:]
        refuse(slug, key, text=repr(value), error=error.message, remedy=remedy, span=(error.start, error.end))
