"""Small tools on functions of the IR: building with inferred types, rebuilding, printing a value as an expression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import vortex.dsl.ops  # noqa: F401  (fills the registry)
from vortex.dsl.axes import TensorType
from vortex.dsl.ir import Attribute, Function, Location, Node, Program, Store
from vortex.dsl.lint import consumers
from vortex.dsl.ops.inputs import LEAVES
from vortex.dsl.registry import FUNCTION, OPERATORS
from vortex.dsl.trace import fill_subset
from vortex.dsl.verify import call_form

__all__ = [
    "FUNCTIONS", "Builder", "Rewrite", "consumers", "dependencies", "expression", "function_of", "live", "rebuild",
    "with_function",
]  # fmt: skip

FUNCTIONS = ("cache", "indexer")


@dataclass(frozen=True)
class Rewrite:
    """One thing that a pass changed.

    pass_name      name of the pass
    location       the author's expression that was replaced, where it is known
    before, after  the value as an expression
    saved          what is no longer computed, in words
    """

    pass_name: str
    location: Location | None
    before: str
    after: str
    saved: str

    def __str__(self) -> str:
        place = "" if self.location is None else f" (line {self.location.line})"
        return f"{self.pass_name}{place}: {self.before} -> {self.after}; saves {self.saved}"


def dependencies(node: Node) -> tuple[int, ...]:
    """Nodes that a node needs: its operands, and the sets that restrict its axes."""
    subsets = (axis.subset for axis in node.type.axes if axis.subset is not None)
    return tuple(dict.fromkeys((*node.inputs, *subsets)))


def live(nodes: Sequence[Node], roots: Iterable[int]) -> set[int]:
    """The nodes that the roots depend on, the roots included."""
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += dependencies(nodes[number])
    return found


class Builder:
    """Appends nodes to a function. Types come from the operators' rules, so they are right by construction.

    which  "cache" or "indexer"
    """

    def __init__(self, which: str) -> None:
        self.which = which
        self.nodes: list[Node] = []

    def type(self, number: int) -> TensorType:
        return self.nodes[number].type

    def add(self, op: str, *inputs: int, location: Location | None = None, **attrs: Any) -> int:
        """One application of an operator to nodes built before. Raises Problem where its rule refuses.

        The axes of Transpose and Merge are the attribute `axes`; `Const` takes `value`.
        """
        return self._append(Node(op, inputs, tuple(attrs.items()), TensorType(()), location))

    def again(self, node: Node, *inputs: int) -> int:
        """The operator and the attributes of a node on operands of this function; a leaf keeps its table's type."""
        return self._append(replace(node, inputs=inputs))

    def constant(self, value: float | int | bool, location: Location | None = None) -> int:
        return self.add("Const", location=location, value=value)

    def infer(self, node: Node) -> Node:
        """The node with the type and the attributes that its rule concludes from its operands here."""
        if node.op in LEAVES and node.op != "Const":
            return node
        token = FUNCTION.set(self.which)
        try:
            positional, keyword = call_form(node)
            types = [self.nodes[each].type for each in node.inputs]
            inferred = OPERATORS[node.op].rule(*types, *positional, **keyword)
        finally:
            FUNCTION.reset(token)
        attrs: tuple[tuple[str, Attribute], ...] = tuple(inferred.attrs.items())
        return replace(node, attrs=attrs, type=fill_subset(inferred.type, node.inputs))

    def _append(self, node: Node) -> int:
        self.nodes.append(self.infer(node))
        return len(self.nodes) - 1

    def arranged(self, number: int, names: tuple[str, ...]) -> int:
        """The value with its axes in this order; the node itself where they already are."""
        if self.type(number).names == names:
            return number
        return self.add("Transpose", number, axes=names, location=self.nodes[number].location)

    def finish(self, stores: Iterable[Store], result: int | None) -> Function:
        """The function of the nodes that stores and result need, renumbered without gaps."""
        stores = tuple(stores)
        roots = [store.value for store in stores] + ([] if result is None else [result])
        needed = live(self.nodes, roots)
        compact = Builder(self.which)
        numbers: dict[int, int] = {}
        for number, node in enumerate(self.nodes):
            if number in needed:
                numbers[number] = compact.again(node, *(numbers[each] for each in node.inputs))
        return Function(
            tuple(compact.nodes),
            tuple(replace(store, value=numbers[store.value]) for store in stores),
            None if result is None else numbers[result],
        )


def rebuild(which: str, function: Function, emit: Callable[[Builder, int, tuple[int, ...]], int]) -> Function:
    """The function with every node made anew by `emit(builder, old number, new operands)`; unneeded ones go."""
    builder = Builder(which)
    numbers: list[int] = []
    for number, node in enumerate(function.nodes):
        numbers.append(emit(builder, number, tuple(numbers[each] for each in node.inputs)))
    stores = [replace(store, value=numbers[store.value]) for store in function.stores]
    return builder.finish(stores, None if function.result is None else numbers[function.result])


INFIX = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Pow": "**", "GeMM": "@", "And": "&", "Or": "|"}


def expression(nodes: Sequence[Node], number: int, limit: int = 160) -> str:
    """A value as an author would write it, on one line of ASCII; what makes it longer than `limit` becomes `...`."""
    for depth in (12, 8, 6, 4, 3, 2):
        text = _expression(nodes, number, depth)
        if len(text) <= limit:
            return text
    return text[: limit - 3] + "..."


def _expression(nodes: Sequence[Node], number: int, depth: int) -> str:
    node = nodes[number]
    if node.op == "Const":
        return repr(node.attr("value"))
    if node.op in LEAVES:
        name = node.attr("name")
        return str(name) if node.op == "Input" and name == "q" else f"{_source(node.op)}[{name!a}]"
    if depth == 0:
        return "..."
    operands = [_expression(nodes, each, depth - 1) for each in node.inputs]
    if node.op in INFIX:
        return f"({operands[0]} {INFIX[node.op]} {operands[1]})"
    if node.op == "Transpose" and len(node.type.axes) == 2:
        return f"{operands[0]}.T"
    settings = [f"{name}={_setting(value)}" for name, value in node.attrs if value is not None]
    return f"{node.op}({', '.join([*operands, *settings])})"


def _setting(value: Attribute) -> str:
    return ascii(value[0] if isinstance(value, tuple) and len(value) == 1 else value)


def _source(op: str) -> str:
    return "Parameter" if op == "Weight" else "c"


def with_function(program: Program, which: str, function: Function) -> Program:
    return replace(program, **{which: function})  # type: ignore[arg-type]


def function_of(program: Program, which: str) -> Function:
    return program.cache if which == "cache" else program.indexer
