"""Passes that compute less and change no value: dead code, common subexpressions, constants, identities.

A pass takes a frozen program and returns another with a list of what it rewrote. `optimise` runs them all,
with the verifier in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vortex.codegen.edit import Edit, Rule, sweep
from vortex.codegen.folding import folded
from vortex.codegen.graph import (
    FUNCTIONS,
    Builder,
    Rewrite,
    expression,
    function_of,
    live,
    rebuild,
    with_function,
)
from vortex.codegen.identities import IDENTITIES
from vortex.codegen.rewrite import rewrite_algebra
from vortex.dsl.ir import Function, Node, Program
from vortex.dsl.ops.inputs import LEAVES
from vortex.dsl.verify import verify as verify_program

Pass = Callable[[Program], tuple[Program, tuple[Rewrite, ...]]]

ROUNDS = 16
"""Rounds over all passes after which a program that still changes is a fault of a pass."""

COMMUTATIVE = frozenset(("Add", "Mul", "Maximum", "Minimum", "And", "Or", "Xor", "Equal", "NotEqual"))


class UnstablePasses(RuntimeError):
    """The passes undo each other: a fault of Vortex, never of an author."""


def dead_code(program: Program) -> tuple[Program, tuple[Rewrite, ...]]:
    """Drops what decides nothing: nodes, states that only feed themselves, entries and parameters nobody reads."""
    name = "dead code"
    rewrites: list[Rewrite] = []
    indexer = program.indexer
    kept, needed = _live_states(indexer)
    read = {
        node.attr("name")
        for number, node in enumerate(indexer.nodes)
        if number in needed and node.op == "Entry"
    }
    for function, wanted, what in ((program.cache, read, "entry"), (indexer, kept, "state")):
        for store in function.stores:
            if store.name not in wanted:
                before = f"c[{store.name!a}] = {expression(function.nodes, store.value)}"
                rewrites.append(Rewrite(name, store.location, before, "nothing", f"a stored {what}"))
    program = replace(
        program,
        cache=_pruned(
            "cache", replace(program.cache, stores=tuple(s for s in program.cache.stores if s.name in read))
        ),
        indexer=_pruned(
            "indexer", replace(indexer, stores=tuple(s for s in indexer.stores if s.name in kept))
        ),
        entries=tuple(entry for entry in program.entries if entry.name in read),
        states=tuple(state for state in program.states if state.name in kept),
    )
    used = {
        node.attr("name")
        for which in FUNCTIONS
        for node in function_of(program, which).nodes
        if node.op == "Weight"
    }
    return replace(program, weights=tuple(w for w in program.weights if w.name in used)), tuple(rewrites)


def _live_states(indexer: Function) -> tuple[set[str], set[int]]:
    """States that the result depends on, in this step or a later one, and the nodes that it then needs."""
    roots = [] if indexer.result is None else [indexer.result]
    kept: set[str] = set()
    while True:
        needed = live(indexer.nodes, roots)
        states = {
            str(indexer.nodes[each].attr("name")) for each in needed if indexer.nodes[each].op == "State"
        }
        if states == kept:
            return kept, needed
        kept = states
        roots += [store.value for store in indexer.stores if store.name in states]


def _pruned(which: str, function: Function) -> Function:
    builder = Builder(which)
    builder.nodes = list(function.nodes)
    return builder.finish(function.stores, function.result)


def common_subexpressions(program: Program) -> tuple[Program, tuple[Rewrite, ...]]:
    """Computes equal values once."""
    rewrites: list[Rewrite] = []
    for which in FUNCTIONS:
        function, found = _shared(which, function_of(program, which))
        program = with_function(program, which, function)
        rewrites += found
    return program, tuple(rewrites)


def _shared(which: str, function: Function) -> tuple[Function, list[Rewrite]]:
    seen: dict[tuple[object, ...], int] = {}
    rewrites: list[Rewrite] = []

    def emit(builder: Builder, number: int, inputs: tuple[int, ...]) -> int:
        node = builder.infer(replace(function.nodes[number], inputs=inputs))
        key = _key(node)
        if key not in seen:
            builder.nodes.append(node)
            seen[key] = len(builder.nodes) - 1
        elif node.op not in LEAVES:
            text = expression(function.nodes, number)
            rewrites.append(
                Rewrite("common subexpressions", node.location, text, "the value above", "computing it again")
            )
        return seen[key]

    return rebuild(which, function, emit), rewrites


def _key(node: Node) -> tuple[object, ...]:
    """Equal for nodes of equal value. By `repr`: 1, 1.0 and True are equal in Python, 0.0 and -0.0 too."""
    inputs = tuple(sorted(node.inputs)) if node.op in COMMUTATIVE else node.inputs
    return (node.op, inputs, repr(node.attrs), node.type)


def _fold(edit: Edit, number: int) -> int | None:
    """An elementwise operator on constants alone, computed now."""
    node = edit.node(number)
    values = [edit.number_of(each) for each in node.inputs]
    if not values or any(value is None for value in values):
        return None
    value = folded(node, values)  # type: ignore[arg-type]
    return None if value is None else edit.constant(value)


def _sweep_both(
    program: Program, name: str, rules: tuple[Rule, ...], saved: str
) -> tuple[Program, tuple[Rewrite, ...]]:
    found: list[Rewrite] = []
    for which in FUNCTIONS:
        program, rewrites = sweep(program, which, name, rules, lambda *_: saved)
        found += rewrites
    return program, tuple(found)


def constant_folding(program: Program) -> tuple[Program, tuple[Rewrite, ...]]:
    """Computes operators on constants where fp32 and exact arithmetic agree on the value."""
    return _sweep_both(program, "constant folding", (_fold,), "an operator on constants")


def identities(program: Program) -> tuple[Program, tuple[Rewrite, ...]]:
    """Drops operators that return their operand bit for bit, NaN and signed zeros included."""
    return _sweep_both(program, "identities", IDENTITIES, "an operator without effect")


PASSES: tuple[tuple[str, Pass], ...] = (
    ("dead code", dead_code),
    ("constant folding", constant_folding),
    ("identities", identities),
    ("common subexpressions", common_subexpressions),
    ("algebra", rewrite_algebra),
)


def optimise(program: Program, verify: bool = True) -> tuple[Program, tuple[Rewrite, ...]]:
    """The program that computes the same with less work, and what was rewritten on the way.

    verify  check the IR after every pass; VerificationError then names the pass

    Runs all passes until none changes anything.
    """
    rewrites: list[Rewrite] = []
    for _ in range(ROUNDS):
        before = program
        for name, run in PASSES:
            program, found = run(program)
            rewrites += found
            if verify:
                verify_program(program, name)
        if program == before:
            return program, tuple(rewrites)
    raise UnstablePasses(f"{program.name}: the passes still change the program after {ROUNDS} rounds")
