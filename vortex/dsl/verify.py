"""Checks that a program keeps the rules of the IR; run after tracing and between passes."""

from __future__ import annotations

from collections.abc import Iterator

import vortex.dsl.ops  # noqa: F401  (fills the registry)
from vortex.dsl.axes import BLOCK, TensorType, computed
from vortex.dsl.ir import Function, Node, Program
from vortex.dsl.ops.inputs import LEAVES
from vortex.dsl.ops.select import is_block_set
from vortex.dsl.problem import Problem
from vortex.dsl.registry import FUNCTION, OPERATORS
from vortex.dsl.trace import fill_subset
from vortex.dsl.view import PER_HEAD, View


class VerificationError(Exception):
    """A program that breaks the IR's rules: a fault of Vortex, never of an author.

    culprit  the pass after which it was found
    """

    def __init__(self, culprit: str, problems: list[str]) -> None:
        super().__init__(f"after {culprit}: " + "; ".join(problems))
        self.culprit = culprit
        self.problems = problems


def verify(program: Program, culprit: str = "tracing", view: View = PER_HEAD) -> Program:
    """The program itself; raises VerificationError with everything that is wrong."""
    problems = [
        *_function(program, program.cache, "cache", view),
        *_function(program, program.indexer, "indexer", view),
    ]
    problems += _tables(program)
    if problems:
        raise VerificationError(culprit, problems)
    return program


def _function(program: Program, function: Function, which: str, view: View) -> Iterator[str]:
    for number, node in enumerate(function.nodes):
        where = f"{which} %{number} {node.op}"
        if node.op not in OPERATORS:
            yield f"{where}: no such operator"
        elif any(not 0 <= each < number for each in node.inputs):
            yield f"{where}: an operand does not stand before it"
        elif any(axis.subset is not None and not axis.subset < number for axis in node.type.axes):
            yield f"{where}: restricted by a later node"
        else:
            yield from _types(program, function, node, which, where, view)
    for store in function.stores:
        if not 0 <= store.value < len(function.nodes):
            yield f"{which} store {store.name!r}: no node {store.value}"


def _types(
    program: Program, function: Function, node: Node, which: str, where: str, view: View
) -> Iterator[str]:
    try:
        expected = (
            _leaf(program, node, which, view) if node.op in LEAVES else _inferred(function, node, which)
        )
    except (Problem, KeyError, StopIteration, TypeError) as problem:
        yield f"{where}: {problem!r}"
        return
    if expected != node.type:
        yield f"{where}: type {node.type}, inferred {expected}"


def _inferred(function: Function, node: Node, which: str) -> TensorType:
    token = FUNCTION.set(which)
    try:
        types = [function.nodes[each].type for each in node.inputs]
        rule = OPERATORS[node.op].rule
        positional, keyword = call_form(node)
        return fill_subset(rule(*types, *positional, **keyword).type, node.inputs)
    finally:
        FUNCTION.reset(token)


def call_form(node: Node) -> tuple[list[object], dict[str, object]]:
    """A node's attributes as its rule takes them: some operators name axes by position."""
    attrs: dict[str, object] = dict(node.attrs)
    if node.op in ("Transpose", "Merge"):
        return list(attrs.pop("axes")), attrs  # type: ignore[call-overload]
    if node.op == "Split":
        return [attrs.pop("axis")], attrs
    return [], attrs


def _leaf(program: Program, node: Node, which: str, view: View) -> TensorType:
    name = str(node.attr("name"))
    if node.op == "Const":
        return OPERATORS["Const"].rule(value=node.attr("value")).type
    if node.op == "Input":
        return view.type(name, which, program.shape, program.policy.block_size)
    if node.op == "Entry":
        entry = program.entry(name)
        stored = "fp32" if entry.storage == "kv" else computed(entry.storage)
        return TensorType((BLOCK, *entry.axes), stored)
    if node.op == "State":
        state = program.state(name)
        return TensorType(state.axes, state.dtype)
    weight = program.weight(name)
    return TensorType(weight.axes, weight.dtype if weight.dtype in ("int32", "bool") else "fp32")


def _tables(program: Program) -> Iterator[str]:
    result = program.indexer.result
    if result is None or not 0 <= result < len(program.indexer.nodes):
        yield "the indexer attends nothing"
    elif not is_block_set(program.indexer.nodes[result].type):
        yield f"the result %{result} is no set of blocks"
    stored = {store.name for store in program.cache.stores}
    if stored != {entry.name for entry in program.entries}:
        yield f"entries {[entry.name for entry in program.entries]} but stores of {sorted(stored)}"
    states = {store.name for store in program.indexer.stores}
    if states != {state.name for state in program.states}:
        yield f"states {[state.name for state in program.states]} but stores of {sorted(states)}"
