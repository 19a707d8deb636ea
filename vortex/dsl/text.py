"""The text form of a program: `parse(print_program(p)) == p`."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from vortex.dsl.axes import Axis, Members, TensorType
from vortex.dsl.ir import (
    Attribute,
    Entry,
    Function,
    Location,
    Node,
    Policy,
    Program,
    Shape,
    State,
    Store,
    Weight,
)

SCHEMA_VERSION = 1
"""Version of the text form, its first line; it changes when text of one version means something else in the next."""


class TextError(ValueError):
    """Text that is no program; the message says where."""


def print_program(program: Program) -> str:
    """The whole program, one node a line."""
    lines = [
        f"ir {SCHEMA_VERSION}",
        f"flow {_string(program.name)} from {_string(program.file)} for {_settings(_fields(program.shape))}",
    ]
    lines.append(f"policy {_settings(_fields(program.policy))}")
    for weight in program.weights:
        rest = {
            name: value for name, value in _fields(weight).items() if name not in ("name", "axes", "dtype")
        }
        lines.append(f"weight {_string(weight.name)} {_axes(weight.axes)} {weight.dtype} {_settings(rest)}")
    for entry in program.entries:
        lines.append(f"entry {_string(entry.name)} {_axes(entry.axes)} {entry.storage}")
    for state in program.states:
        lines.append(
            f"state {_string(state.name)} {_axes(state.axes)} {state.dtype} = {_value(state.default)}"
        )
    lines += [
        "cache {",
        *print_function(program.cache),
        "}",
        "indexer {",
        *print_function(program.indexer),
        "}",
    ]
    return "\n".join(lines) + "\n"


def print_function(function: Function) -> list[str]:
    lines = [
        f"  {print_node(number, node)}{_place(node.location)}" for number, node in enumerate(function.nodes)
    ]
    lines += [
        f"  store {_string(each.name)} %{each.value}{_place(each.location)}" for each in function.stores
    ]
    if function.result is not None:
        lines.append(f"  attend %{function.result}")
    return lines


def print_node(number: int, node: Node) -> str:
    inputs = ", ".join(f"%{each}" for each in node.inputs)
    return f"%{number} = {node.op}({inputs}) {_settings(dict(node.attrs))} : {node.type}"


def _fields(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _string(text: str) -> str:
    return json.dumps(text)


def _axes(axes: tuple[Axis, ...]) -> str:
    return f"({', '.join(['1', *map(str, axes)])})"


def _settings(values: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{name}={_value(value)}" for name, value in values.items()) + "}"


def _value(value: Attribute) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return (
        {None: "none", True: "true", False: "false"}[value]
        if value is None or value is True or value is False
        else repr(value)
    )


def _place(place: Location | None) -> str:
    return f" @ {place.line}:{place.column}-{place.end_line}:{place.end_column}" if place is not None else ""


@functools.cache
def _grammar() -> Any:
    from importlib.resources import files

    from lark import Lark

    text = files("vortex.dsl").joinpath("text.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", maybe_placeholders=True)


def parse(text: str) -> Program:
    """The program that a text describes. Raises TextError."""
    from lark.exceptions import LarkError, VisitError

    try:
        tree = _grammar().parse(text)
        return _program(tree)
    except VisitError as error:
        raise TextError(str(error.orig_exc)) from None
    except LarkError as error:
        raise TextError(str(error)) from None


def _program(tree: Any) -> Program:
    version, header, policy, *rest = tree.children
    if int(version.children[0]) != SCHEMA_VERSION:
        raise TextError(f"the text has version {version.children[0]}; version {SCHEMA_VERSION} is read")
    found: dict[str, list[Any]] = {name: [] for name in ("weight", "entry", "state", "cache", "indexer")}
    for each in rest:
        found[each.data].append(each)
    name, file, shape = header.children
    return Program(
        name=json.loads(name),
        file=json.loads(file),
        shape=Shape(**_read_settings(shape)),
        policy=Policy(**_read_settings(policy.children[0])),
        cache=_function(found["cache"][0]),
        indexer=_function(found["indexer"][0]),
        entries=tuple(
            Entry(json.loads(name), _read_axes(axes), str(storage))
            for name, axes, storage in (each.children for each in found["entry"])
        ),
        states=tuple(
            State(json.loads(name), _read_axes(axes), str(dtype), _read_value(default))
            for name, axes, dtype, default in (each.children for each in found["state"])
        ),
        weights=tuple(
            Weight(name=json.loads(name), axes=_read_axes(axes), dtype=str(dtype), **_read_settings(settings))
            for name, axes, dtype, settings in (each.children for each in found["weight"])
        ),
    )


def _function(tree: Any) -> Function:
    nodes, stores, result = [], [], None
    for each in tree.children:
        if each is None:
            continue
        if each.data == "node":
            nodes.append(_node(each))
            if int(each.children[0][1:]) != len(nodes) - 1:
                raise TextError(f"node {each.children[0]} stands at position {len(nodes) - 1}")
        elif each.data == "store":
            name, value, place = each.children
            stores.append(Store(json.loads(name), int(value[1:]), _read_place(place)))
        else:
            result = int(each.children[0][1:])
    return Function(tuple(nodes), tuple(stores), result)


def _node(tree: Any) -> Node:
    _, op, *inputs, settings, type, place = tree.children
    return Node(
        op=str(op),
        inputs=tuple(int(each[1:]) for each in inputs if each is not None),
        attrs=tuple(_read_settings(settings).items()),
        type=_type(type),
        location=_read_place(place),
    )


def _type(tree: Any) -> TensorType:
    axes, kind = tree.children
    if kind.data == "dtype":
        return TensorType(_read_axes(axes), str(kind.children[0]))
    axis, count = kind.children
    return TensorType(_read_axes(axes), "bool", Members(str(axis), None if count is None else int(count)))


def _read_axes(tree: Any) -> tuple[Axis, ...]:
    axes = []
    for each in tree.children[1:]:
        if each is None:
            continue
        name, detail = each.children
        if each.data == "sized":
            axes.append(Axis(str(name), int(detail)))
        else:
            axes.append(Axis(str(name), None, None if detail is None else int(detail[1:])))
    return tuple(axes)


def _read_place(tree: Any) -> Location | None:
    return None if tree is None else Location(*(int(each) for each in tree.children))


def _read_settings(tree: Any) -> dict[str, Any]:
    pairs = [each.children for each in tree.children if each is not None]
    return {str(name): _read_value(value) for name, value in pairs}


def _read_value(tree: Any) -> Any:
    if tree.data == "list":
        return tuple(_read_value(each) for each in tree.children if each is not None)
    convert: dict[str, Callable[[str], Any]] = {"string": json.loads, "integer": int, "float": float}
    if tree.data in convert:
        value = convert[tree.data](tree.children[0])
        # One object for NaN, so that a program equals itself read back.
        return math.nan if value != value else value
    return {"true": True, "false": False, "none": None}[tree.data]
