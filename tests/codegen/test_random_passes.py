"""Random programs mean the same after all passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from flows import evaluate, flow
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vortex.codegen.decompose import decompose
from vortex.codegen.graph import Builder
from vortex.codegen.simplify import optimise
from vortex.dsl.axes import BLOCK, TensorType
from vortex.dsl.ir import Node, State, Store
from vortex.dsl.policy import PolicyError
from vortex.dsl.problem import Problem
from vortex.dsl.verify import verify

CACHE = 'c["m"] = Mean(c["k"])\nc["hi"] = Max(c["k"])\nc["lo"] = Min(c["k"])'
LEAVES = (
    'return topK(Max(Sum(c["hi"] * c["lo"] * c["m"] * Max(c["k"], dim="token") * q, dim="dim"), dim="head"))'
)
CONSTANTS = (0.0, -0.0, 1.0, 1, 2, 0.5, -3.0, 7)
UNARY = ("Neg", "Abs", "Relu", "Sigmoid", "Tanh", "Transpose")
BINARY = ("Add", "Sub", "Mul", "Maximum", "Minimum", "GeMM", "Add", "Mul", "GeMM")
REDUCE = ("Sum", "Mean", "Max", "Min", "Sum", "Mean", "L2Norm")
ROW = ("Softmax", "Normalize", "Conv1d", "CumSum")

STEP = st.tuples(
    st.sampled_from(("unary", "binary", "binary", "reduce", "reduce", "row", "constant", "square")),
    st.integers(0, 11),
    st.integers(0, 40),
    st.integers(0, 40),
)


def grow(builder, step, values):
    """One more value from the values so far; Problem where the operator refuses them."""
    kind, choice, first, second = step
    a, b = values[-1 - first % len(values)], values[-1 - second % len(values)]
    if kind == "unary":
        return builder.add(
            UNARY[choice % len(UNARY)], a, **({"axes": ()} if UNARY[choice % 6] == "Transpose" else {})
        )
    if kind == "binary":
        return builder.add(BINARY[choice % len(BINARY)], a, b)
    if kind == "square":
        return builder.add("Pow", a, builder.constant(2 if choice % 2 else 1))
    if kind == "constant":
        number = builder.constant(CONSTANTS[choice % len(CONSTANTS)])
        op = ("Mul", "Add", "Sub", "Div")[second % 4]
        if op == "Div" and builder.nodes[number].attr("value") == 0:
            op = "Mul"
        return builder.add(op, a, number)
    names = [name for name in builder.type(a).names if name != "block" or kind == "row"]
    if not names:
        raise Problem("reduce-scalar")
    if kind == "reduce":
        picked = tuple(names[: 1 + second % len(names)]) if choice > 8 else (names[second % len(names)],)
        return builder.add(REDUCE[choice % len(REDUCE)], a, dim=picked)
    op = ROW[choice % len(ROW)]
    weights = {"weights": (0.25, 1.0, -0.5)} if op == "Conv1d" else {}
    return builder.add(op, a, **weights, dim=(names[second % len(names)],))


def program_of(base, steps):
    """The base's leaves, then the steps, all reduced to one row that a state keeps and topK ranks."""
    builder = Builder("indexer")
    builder.nodes = [node for node in base.indexer.nodes if node.op in ("Input", "Entry")]
    values = list(range(len(builder.nodes)))
    for step in steps:
        try:
            values.append(grow(builder, step, values))
        except (Problem, PolicyError):
            continue
    rows = []
    for value in values[5:][-4:]:
        rest = tuple(name for name in builder.type(value).names if name != "block")
        if builder.type(value).axis("block") is not None:
            rows.append(builder.add("Sum", value, dim=rest) if rest else value)
    row = TensorType((BLOCK,))
    builder.nodes.append(Node("State", (), (("name", "s"),), row))
    total = len(builder.nodes) - 1
    for each in rows:
        total = builder.add("Add", total, each)
    function = builder.finish([Store("s", total)], builder.add("topK", total, dim="block"))
    return verify(replace(base, indexer=function, states=(State("s", (BLOCK,), "fp32", 0.0),)), "the test")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return flow(tmp_path_factory.mktemp("random"), LEAVES, CACHE)


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEP, min_size=3, max_size=14))
def test_a_random_program_keeps_its_values(base, steps):
    program = program_of(base, steps)
    outcome = evaluate(program, blocks=9)
    before = outcome.stores["s"]
    if not before.isfinite().all() or before.abs().max() > 1e12:
        return  # regrouped sums of huge numbers cancel differently
    result, _ = optimise(program)
    assert optimise(result) == (result, ())
    for each in (result, decompose(result)[0]):
        after = evaluate(each, blocks=9).stores["s"]
        torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-12 * max(1.0, outcome.largest))
