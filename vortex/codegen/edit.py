"""Rewriting a function by local rules: one sweep over its nodes, old ones read, new ones appended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from vortex.codegen.graph import Builder, Rewrite, consumers, expression, function_of, with_function
from vortex.dsl.ir import Location, Node, Program
from vortex.dsl.problem import Problem


class Edit(Builder):
    """One sweep over a function: old nodes are read, new ones appended.

    old     the function that is being rewritten
    new     old number -> new number, for the nodes already passed
    uses    old number -> how many nodes, stores and results need it
    reused  new numbers that accepted rewrites of this sweep read
    """

    def __init__(self, program: Program, which: str) -> None:
        super().__init__(which)
        self.program = program
        self.old = function_of(program, which)
        self.new: dict[int, int] = {}
        self.reused: set[int] = set()
        self.uses = [len(each) for each in consumers(self.old).values()]
        for root in (*(store.value for store in self.old.stores), self.old.result):
            if root is not None:
                self.uses[root] += 1
        self.place: Location | None = None

    def node(self, number: int) -> Node:
        """A node of the old function."""
        return self.old.nodes[number]

    def add(self, op: str, *inputs: int, location: Location | None = None, **attrs: Any) -> int:
        """As Builder.add; a new node stands where the one that is being replaced stood."""
        return super().add(op, *inputs, location=location or self.place, **attrs)

    def number_of(self, number: int) -> float | int | bool | None:
        """The value of an old node that is a constant, else None."""
        node = self.node(number)
        return node.attr("value") if node.op == "Const" else None  # type: ignore[return-value]


Rule = Callable[[Edit, int], int | None]
"""(edit, old number) -> the new node that takes its place, or None. It applies only where the type stays."""

Judge = Callable[[Edit, int, int, int], str | None]
"""(edit, old number, new number, first node the rule added) -> what is saved, or None to refuse."""


def sweep(
    program: Program, which: str, name: str, rules: Sequence[Rule], judge: Judge
) -> tuple[Program, list[Rewrite]]:
    """Every node of a function once, rewritten by the first rule that applies."""
    edit = Edit(program, which)
    rewrites: list[Rewrite] = []
    for number, node in enumerate(edit.old.nodes):
        edit.place = node.location
        copied = edit.infer(replace(node, inputs=tuple(edit.new[each] for each in node.inputs)))
        for rule in rules:
            start = len(edit.nodes)
            try:
                made = rule(edit, number)
            except Problem:  # the operands do not fit the form that the rule would give them
                made = None
            saved = None
            if made is not None and edit.type(made) == copied.type:
                saved = judge(edit, number, made, start)
            if made is not None and saved is not None:
                edit.new[number] = made
                rewrites.append(
                    Rewrite(
                        name,
                        node.location,
                        expression(edit.old.nodes, number),
                        expression(edit.nodes, made),
                        saved,
                    )
                )
                break
            del edit.nodes[start:]
        else:
            edit.nodes.append(copied)
            edit.new[number] = len(edit.nodes) - 1
    if not rewrites:
        return program, []
    stores = [replace(store, value=edit.new[store.value]) for store in edit.old.stores]
    result = None if edit.old.result is None else edit.new[edit.old.result]
    return with_function(program, which, edit.finish(stores, result)), rewrites
