"""What can be proven of values: that they are finite, and that one is nowhere below another."""

from __future__ import annotations

import math

from vortex.codegen.graph import live
from vortex.dsl.ir import Function, Node, Program

FINITE = frozenset((
    "Abs", "Add", "Sub", "Mul", "Neg", "Relu", "Sigmoid", "Silu", "Tanh", "Maximum", "Minimum", "Where", "Cast",
    "Sum", "L2Norm", "GeMM", "Softmax", "Normalize", "Conv1d", "CumSum",
    "Transpose", "Rename", "Split", "Merge", "Slice", "Concat",
    "Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual", "And", "Or", "Xor", "Not",
    "Position", "First", "Last", "Union", "topK", "topP", "Threshold", "Gather", "Input", "Weight",
))  # fmt: skip
"""Operators that make no inf and no NaN of finite values, overflow aside."""

MONOTONE_STORAGE = ("kv", "fp32", "bf16", "fp16", "fp8")
"""Roundings that keep the order of two values; int8 and int4 scale each entry by its own largest element."""


def finite(program: Program, function: Function, number: int) -> bool:
    """Whether a value has neither inf nor NaN, given that K, V, q and the parameters have none."""
    return all(_finite_node(program, function.nodes[each]) for each in live(function.nodes, [number]))


def _finite_node(program: Program, node: Node) -> bool:
    if node.op == "Const":
        return math.isfinite(node.attr("value"))  # type: ignore[arg-type]
    if node.op in ("Max", "Min", "Mean"):
        return "block" not in node.attr("dim")  # type: ignore[operator]
    if node.op == "Entry":
        cache = program.cache
        return any(
            store.name == node.attr("name") and finite(program, cache, store.value) for store in cache.stores
        )
    return node.op in FINITE


def upper_and_lower(program: Program, first: Node, second: Node) -> tuple[bool, bool]:
    """Whether first >= second everywhere, and whether second >= first: entries kept as Max and Min of one tensor."""
    if first.op != "Entry" or second.op != "Entry":
        return False, False
    entries = [program.entry(str(each.attr("name"))) for each in (first, second)]
    if entries[0].storage != entries[1].storage or entries[0].storage not in MONOTONE_STORAGE:
        return False, False
    one, two = (_stored(program, entry.name) for entry in entries)
    if (one.inputs, one.attrs) != (two.inputs, two.attrs):
        return False, False
    return (one.op, two.op) == ("Max", "Min"), (one.op, two.op) == ("Min", "Max")


def _stored(program: Program, name: str) -> Node:
    """What an entry keeps, before it is rounded to its storage dtype."""
    nodes = program.cache.nodes
    node = next(nodes[store.value] for store in program.cache.stores if store.name == name)
    return nodes[node.inputs[0]] if node.op == "Cast" else node
