"""Warnings about programs that are right but do less than their author hopes; found in the graph, not in the text."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from vortex.dsl.diagnostics import Diagnostic, diagnose
from vortex.dsl.ir import Function, Location, Node, Program
from vortex.dsl.ops.inputs import LEAVES
from vortex.dsl.ops.storage import BITS
from vortex.dsl.registry import OPERATORS

MONOTONE = ("Exp", "Log", "Sqrt", "Sigmoid", "Tanh", "Softmax")
"""Steps that keep the order of the blocks (Softmax over block, Log and Sqrt where they are defined)."""

UNUSUAL = (math.nan, math.inf, -math.inf)

BOUNDED = ("Softmax", "Normalize", "Sigmoid", "Tanh", "Log", "L2Norm")
"""Steps after which the size of q k^T no longer shows."""


def lints(program: Program) -> list[Diagnostic]:
    found = [*unread_entries(program), *large_entries(program)]
    for function in (program.cache, program.indexer):
        found += unused_values(function)
    found += [*monotone_steps(program), *whole_keys(program), *unscaled_softmax(program)]
    found += [*absent_files(program), *states_from_nothing(program)]
    return [diagnose(slug, program.file, place, **facts) for slug, place, facts in found]


Finding = tuple[str, Location | None, dict[str, object]]


def consumers(function: Function) -> dict[int, list[int]]:
    """Node -> nodes that use it, as an operand or through a restricted axis."""
    uses: dict[int, list[int]] = {number: [] for number in range(len(function.nodes))}
    for number, node in enumerate(function.nodes):
        subsets = {axis.subset for axis in node.type.axes if axis.subset is not None}
        for each in {*node.inputs, *subsets}:
            uses[each].append(number)
    return uses


def unread_entries(program: Program) -> Iterator[Finding]:
    read = {node.attr("name") for node in program.indexer.nodes if node.op == "Entry"}
    for store in program.cache.stores:
        if store.name not in read:
            yield "entry-unread", store.location, {"name": store.name}


def unused_values(function: Function) -> Iterator[Finding]:
    uses = consumers(function)
    kept = {store.value for store in function.stores} | {function.result}
    for number, node in enumerate(function.nodes):
        leaf = node.op in LEAVES or node.type.members is not None
        if not uses[number] and number not in kept and not leaf:
            yield "unused-value", node.location, {}


def absent_files(program: Program) -> Iterator[Finding]:
    """Parameters whose file is not there yet; what a file holds is read when the flow runs."""
    folder = os.path.dirname(os.path.abspath(program.file))
    nodes = (node for function in (program.cache, program.indexer) for node in function.nodes)
    places = {node.attr("name"): node.location for node in reversed([*nodes]) if node.op == "Weight"}
    for weight in program.weights:
        if weight.file is not None and not os.path.isfile(os.path.join(folder, weight.file)):
            axes = ", ".join(weight.axis_names)
            facts: dict[str, object] = {"name": weight.name, "path": weight.file, "axes": axes}
            yield "parameter-file", places.get(weight.name), facts


def states_from_nothing(program: Program) -> Iterator[Finding]:
    """States that keep what a reduction of `block` gives where there is none, in each later step as well.

    A state with an axis `block` has no element then, and one that does not read itself forgets it.
    """
    function = program.indexer
    for store in function.stores:
        seen: set[tuple[int, frozenset[str]]] = set()
        pending: list[tuple[int, frozenset[str]]] = [(store.value, frozenset())]
        found, carried = None, False
        while pending:
            number, mended = pending.pop()
            node = function.nodes[number]
            if (number, mended) in seen or node.type.axis("block") or node.type.dtype == "bool":
                continue
            seen.add((number, mended))
            carried = carried or (node.op == "State" and node.attr("name") == store.name)
            value = over_nothing(function, node)
            if value is not None and value not in mended:
                found = found or (node, value)
            pending += [(each, mended | mends(node, place)) for place, each in enumerate(node.inputs)]
        if found is not None and carried:
            node, value = found
            facts: dict[str, object] = {"name": store.name, "op": node.op, "value": value}
            yield "state-from-nothing", node.location, facts


def over_nothing(function: Function, node: Node) -> str | None:
    """NaN, inf or -inf, where an operator gives that for a request without a finished block."""
    operator = OPERATORS.get(node.op)
    types = tuple(function.nodes[each].type for each in node.inputs)
    if operator is None or not node.type.is_float or "block" not in operator.crosses(node, types):
        return None
    value = operator.neutral if operator.empty is None else operator.empty
    return None if value is None or math.isfinite(value) else shown(value)


def mends(node: Node, place: int) -> frozenset[str]:
    """Of NaN and the infinities, those that an operand at this place may be and the result is finite all the same.
    `Where` mends all of them: its author chose when to take it."""
    operator = OPERATORS.get(node.op)
    if node.op == "Where":
        return frozenset(map(shown, UNUSUAL))
    if operator is None or operator.scalar is None or not node.type.is_float:
        return frozenset()
    operands = [1.0] * len(node.inputs)
    found = set()
    for value in UNUSUAL:
        operands[place] = value
        if math.isfinite(operator.scalar(*operands)):
            found.add(shown(value))
    return frozenset(found)


def shown(value: float) -> str:
    return "NaN" if math.isnan(value) else str(value)


def entry_bytes_per_token(program: Program, name: str, kv_bytes: int = 2) -> float:
    """Bytes of one entry for each cached token and KV head, scales included."""
    entry = program.entry(name)
    elements = math.prod(axis.size or 1 for axis in entry.axes)
    bits = 8 * kv_bytes if entry.storage == "kv" else BITS[entry.storage]
    total = elements * bits / 8
    if entry.storage in ("int8", "int4") and entry.axes:
        total += 2 * elements / (entry.axes[-1].size or 1)
    return total / program.policy.block_size


def large_entries(program: Program) -> Iterator[Finding]:
    limit = 2.0 * program.shape.head_dim
    for store in program.cache.stores:
        size = entry_bytes_per_token(program, store.name)
        if size >= limit:
            yield (
                "entry-large",
                store.location,
                {"name": store.name, "bytes": f"{size:g}", "limit": f"{limit:g}"},
            )


def monotone_steps(program: Program) -> Iterator[Finding]:
    """A step between scores and topK that keeps their order. Heads that share their scores combine its values."""
    if program.policy.share_heads:
        return
    nodes = program.indexer.nodes
    # A block scored -inf is never selected, and Exp or Softmax would make it eligible.
    if any(node.op == "Const" and node.attr("value") == -math.inf for node in nodes):
        return
    uses = consumers(program.indexer)
    kept = {store.value for store in program.indexer.stores}
    for number, node in enumerate(nodes):
        if node.op != "topK" or node.attr("dim") != "block":
            continue
        (source,) = node.inputs
        step = nodes[source]
        alone = uses[source] == [number] and source not in kept
        whole_row = step.op != "Softmax" or step.attr("dim") == ("block",)
        if alone and step.op in MONOTONE and whole_row and step.type.names == ("block",):
            yield "monotone", step.location, {"op": step.op}


def whole_keys(program: Program) -> Iterator[Finding]:
    """Reads of k or v over every block; a Gather or a Slice in between reads less, a reused selection less often."""
    if (program.policy.reuse_steps, program.policy.reuse_layers) != (1, 1):
        return
    nodes = program.indexer.nodes
    uses = consumers(program.indexer)
    for number, node in enumerate(nodes):
        if node.op != "Input" or node.type.axis("block") is None:
            continue
        for user in uses[number]:
            if nodes[user].op not in ("Gather", "Slice"):
                yield "reads-all-keys", nodes[user].location, {"name": f"c[{node.attr('name')!r}]"}
                break


def unscaled_softmax(program: Program) -> Iterator[Finding]:
    """Softmax over attention scores that no number and no parameter without axes scaled on the way.

    Scores are products of q with what the cache holds, or any that a softmax over block or token weighs: a learned
    gate of the query alone has a scale of its own.
    """
    nodes = program.indexer.nodes
    query: set[int] = set()
    product: set[int] = set()
    scaled: set[int] = set()
    cached: set[int] = set()
    for number, node in enumerate(nodes):
        inputs = set(node.inputs)
        if node.op == "Softmax" and inputs & product:
            over_tokens = {"block", "token"} & set(node.attr("dim"))  # type: ignore[arg-type]
            if inputs & cached or over_tokens:
                yield "unscaled", node.location, {}
        if inputs & cached or node.op == "Entry" or (node.op == "Input" and node.attr("name") != "q"):
            cached.add(number)
        by_number = node.op in ("Mul", "Div") and any(not nodes[each].type.axes for each in inputs)
        if node.op == "Input" and node.attr("name") == "q":
            query.add(number)
        elif node.op in BOUNDED or node.type.dtype != "fp32":
            continue
        elif inputs & scaled or (by_number and inputs & (query | product)):
            scaled.add(number)
        elif inputs & product or (inputs & query and node.op in ("GeMM", "Mul")):
            product.add(number)
        elif inputs & query:
            query.add(number)
