"""The verifier: a program that a pass broke is caught, and the pass is named."""

import dataclasses
import random
from collections.abc import Callable

import pytest

from tests.generate import generate
from vortex.dsl.axes import Axis, TensorType
from vortex.dsl.ir import Function, Node, Program, Store
from vortex.dsl.verify import VerificationError, verify

Break = Callable[[Program, random.Random], Program | None]
BREAKS: dict[str, Break] = {}


def breaks(function: Break) -> Break:
    BREAKS[function.__name__] = function
    return function


def with_indexer(program: Program, **changes: object) -> Program:
    return dataclasses.replace(program, indexer=dataclasses.replace(program.indexer, **changes))


def with_node(program: Program, at: int, **changes: object) -> Program:
    nodes = list(program.indexer.nodes)
    nodes[at] = dataclasses.replace(nodes[at], **changes)
    return with_indexer(program, nodes=tuple(nodes))


def some(rng: random.Random, program: Program, wanted: Callable[[Node], bool]) -> int | None:
    fitting = [at for at, node in enumerate(program.indexer.nodes) if wanted(node)]
    return rng.choice(fitting) if fitting else None


@breaks
def an_operand_behind_its_user(program, rng):
    at = some(rng, program, lambda node: bool(node.inputs))
    return None if at is None else with_node(program, at, inputs=(at, *program.indexer.nodes[at].inputs[1:]))


@breaks
def an_operand_too_many(program, rng):
    at = some(rng, program, lambda node: len(node.inputs) == 1 and node.op not in ("Union", "Concat"))
    return None if at is None else with_node(program, at, inputs=program.indexer.nodes[at].inputs * 2)


@breaks
def an_unknown_operator(program, rng):
    return with_node(program, rng.randrange(len(program.indexer.nodes)), op="Sinus")


@breaks
def another_dtype(program, rng):
    at = some(rng, program, lambda node: node.type.members is None and node.op != "Const")
    if at is None:
        return None
    old = program.indexer.nodes[at].type
    return with_node(program, at, type=TensorType(old.axes, "int32" if old.dtype != "int32" else "fp32"))


@breaks
def another_size(program, rng):
    at = some(rng, program, lambda node: any(axis.size for axis in node.type.axes))
    if at is None:
        return None
    old = program.indexer.nodes[at].type
    axes = tuple(Axis(axis.name, axis.size + 1) if axis.size else axis for axis in old.axes)
    return with_node(program, at, type=dataclasses.replace(old, axes=axes))


@breaks
def an_attribute_that_no_rule_takes(program, rng):
    at = some(rng, program, lambda node: node.op in ("Sum", "Mean", "Max", "Min", "Softmax", "topK", "Cast"))
    return None if at is None else with_node(program, at, attrs=(("dimension", "token"),))


@breaks
def a_set_restricted_by_a_later_node(program, rng):
    at = some(rng, program, lambda node: any(axis.subset is not None for axis in node.type.axes))
    if at is None:
        return None
    old = program.indexer.nodes[at].type
    axes = tuple(dataclasses.replace(a, subset=at) if a.subset is not None else a for a in old.axes)
    return with_node(program, at, type=dataclasses.replace(old, axes=axes))


@breaks
def a_result_that_is_no_set(program, rng):
    at = some(rng, program, lambda node: node.type.dtype == "fp32")
    return None if at is None else with_indexer(program, result=at)


@breaks
def no_result(program, rng):
    return with_indexer(program, result=None)


@breaks
def a_result_beyond_the_nodes(program, rng):
    return with_indexer(program, result=len(program.indexer.nodes))


@breaks
def a_store_of_an_unknown_entry(program, rng):
    stores = (*program.cache.stores, Store("nobody", 0))
    return dataclasses.replace(program, cache=Function(program.cache.nodes, stores))


@breaks
def a_store_beyond_the_nodes(program, rng):
    stores = tuple(dataclasses.replace(each, value=10**6) for each in program.cache.stores)
    return dataclasses.replace(program, cache=Function(program.cache.nodes, stores)) if stores else None


@breaks
def an_entry_that_no_one_declares(program, rng):
    return dataclasses.replace(program, entries=()) if program.entries else None


@breaks
def an_entry_of_other_axes(program, rng):
    entries = tuple(dataclasses.replace(each, axes=(Axis("odd", 3),)) for each in program.entries)
    return dataclasses.replace(program, entries=entries) if entries else None


@breaks
def a_state_of_another_shape(program, rng):
    states = tuple(dataclasses.replace(each, axes=(Axis("odd", 3),)) for each in program.states)
    return dataclasses.replace(program, states=states) if states else None


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_program_is_caught_and_its_pass_is_named(name):
    caught = 0
    for seed in range(12):
        broken = BREAKS[name](generate(seed).program, random.Random(seed))
        if broken is None:
            continue
        with pytest.raises(VerificationError, match="after a rewrite") as error:
            verify(broken, "a rewrite")
        assert error.value.culprit == "a rewrite" and error.value.problems
        caught += 1
    assert caught >= 2


def test_a_sound_program_passes_unchanged():
    program = generate(1).program
    assert verify(program, "nothing") is program
