"""A batch of ragged requests that share pages gives, bit for bit, what each request gives alone."""

from pathlib import Path

import pytest
import torch

from tests.vtensor.support import compare_with_alone, decode, edge_lengths, flow, traced
from vortex.dsl.registry import OPERATORS

ALGORITHMS = sorted(Path(__file__).parents[2].joinpath("algorithms").glob("*.py"))

# Operator -> (x of a block made of k and v, s made of e, the entry, and q). The mean of x over `token` is
# the entry; the sum of s over `dim` is the score.
UNARY = ("Sigmoid", "Silu", "Tanh", "Abs", "Neg", "Relu", "Exp")
BINARY = ("Maximum", "Minimum", "Add", "Sub", "Mul", "Div")
COMPARISONS = ("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual")
BITWISE = ("And", "Or", "Xor")
PLAIN = {
    **{op: (f"{op}(k)", f"{op}(e) * one") for op in UNARY},
    **{op: (f"{op}(Abs(k))", f"{op}(Abs(e) + 1.0) * one") for op in ("Log", "Sqrt", "Rsqrt")},
    **{op: (f"{op}(k, v)", f"{op}(e, one)") for op in BINARY},
    **{op: (f"Where({op}(k, v), k, v)", f"Where({op}(e, one), e, one)") for op in COMPARISONS},
    **{op: (f"Where({op}(k > 0, v > 0), k, v)", f"Where({op}(e > 0, one > 0), e, one)") for op in BITWISE},
    "FloorDiv": ("FloorDiv(k, 0.5)", "FloorDiv(e, 0.25) * one"),
    "Mod": ("Mod(k, 0.5)", "Mod(e, 0.25) * one"),
    "Pow": ("Pow(Abs(k), 1.5)", "Pow(Abs(e), 0.5) * one"),
    "Not": ("Where(~(k > 0), k, v)", "Where(~(e > 0), e, one)"),
    "Where": ("Where(k > v, k, 0.0)", "Where(e > one, e, 2.0)"),
    "Cast": ("Cast(k, 'int8') + Cast(v, 'fp8')", "Cast(e, 'sign') * one"),
    "Sum": ("k + Sum(k)", "e * Sum(q, dim='head')"),
    "Mean": ("k + Mean(k)", "e * one - Mean(e * one, dim='block')"),
    "Max": ("k + Max(k)", "e * one - Max(e * one, dim='block')"),
    "Min": ("k + Min(k)", "e * one - Min(e * one, dim='block')"),
    "ArgMax": ("k * ArgMax(k, dim='dim')", "e * ArgMax(one * e, dim='block')"),
    "ArgMin": ("k * ArgMin(k, dim='token')", "e * ArgMin(one * e, dim='dim')"),
    "Softmax": ("k * Softmax(k, dim='token')", "Softmax(e * one, dim=('block', 'dim'))"),
    "Normalize": ("Normalize(k)", "Normalize(e * one) * one"),
    "CumSum": ("CumSum(k, dim='token')", "CumSum(e * one)"),
    "Conv1d": ("Conv1d(k, [0.5, 1.0, 0.25], dim='dim')", "Conv1d(e * one, [0.5, 1.0])"),
    "MaxPool1d": ("MaxPool1d(k, 3, dim='dim')", "Where(MaxPool1d(e * one, 3) > 1.0, e, one)"),
    "topK": ("Where(topK(k, dim='dim', k=3), k, v)", "Where(topK(e, dim='dim', k=2), e, 0.0) * one"),
    "topP": ("k", "Where(topP(Exp(Sum(e * one)), 0.6), one, e)"),
    "Threshold": ("k", "Where(Threshold(Sum(e * one), 0.5), one, e)"),
    "First": ("k", "Where(First(2), one, e)"),
    "Last": ("k", "Where(Last(2), one, e)"),
    "Union": ("k", "Where(Union(First(1), Last(2), Sum(e * one) > 1.0), one, e)"),
    "Gather": ("Gather(k, topK(v, dim='dim', k=8))", "Gather(e, topK(Sum(e * one), k=5)) * one"),
    "Scatter": ("k", "Scatter(Gather(e, topK(Sum(e * one), k=4)) * one, fill=-3.0)"),
    "Concat": ("Concat(k[:, :, :4], Mean(v)[:, 4:], dim='dim')", "Concat(e * one, one, dim='dim')"),
    "Merge": (
        "Merge(Split(k, 'dim', a=2, b=4), 'b', 'a', to='dim')",
        "Merge(Split(e * one, 'dim', a=2, b=4), 'b', 'a', to='dim') * one",
    ),
}  # fmt: skip

# Operator -> (entry, score), where the frame above does not fit.
WHOLE = {
    "GeMM": ("Mean(GeMM(k, GeMM(k.T, Rename(v, dim='other'))), dim='token')", "Max(GeMM(e, Rename(q, dim='other').T))"),
    "L2Norm": ("L2Norm(k)", "Max(Mean(e) * L2Norm(q), dim='head')"),
    "Split": ("Mean(Max(Split(k, 'dim', a=2, b=4), dim='a'))", "Sum(Max(Split(one, 'dim', a=2, b=4), dim='a') * e)"),
    "Rename": ("GeMM(Rename(k, dim='other').T, v)", "Sum(e * Rename(one, dim='other'), dim=('other', 'dim'))"),
    "Transpose": ("GeMM(Transpose(k, 'dim', 'token'), Rename(v, dim='other'))", "Max(GeMM(one, e))"),
    "attn": ("Mean(k)", "Sum(e * one)"),
}  # fmt: skip
USES = {
    **{op: (f"Mean({x}, dim='token')", f"Sum({s}, dim='dim')") for op, (x, s) in PLAIN.items()},
    **WHOLE,
}


def body(op: str) -> str:
    entry, score = USES[op]
    result = "attn(q, c['k'], c['v'], topK(s))" if op == "attn" else "topK(s)"
    return f"""
    def forward_cache(self, c):
        k, v = c["k"], c["v"]
        c["e"] = {entry}

    def forward_indexer(self, q, c):
        e, one = c["e"], Mean(q, dim="head")
        s = {score}
        return {result}
"""


def test_every_public_operator_has_a_flow_here():
    assert set(USES) == {name for name, op in OPERATORS.items() if op.public}


@pytest.mark.parametrize("op", sorted(USES))
def test_operator(op, tmp_path):
    number = sorted(USES).index(op)
    block, group, pages = (
        (1, 8, 16)[number % 3],
        (1, 3, 4)[number % 2 + number % 4 // 3],
        (1, 2, 4)[number % 5 % 3],
    )
    program = flow(tmp_path, body(op), group, block_size=block, budget=4)
    compare_with_alone(program, block * pages, edge_lengths(block * pages), steps=2, seed=number)


@pytest.mark.parametrize("block", [1, 8, 16])
@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize("blocks_per_page", [1, 4])
def test_block_sizes_groups_and_pages(block, group, blocks_per_page, tmp_path):
    page = block * blocks_per_page
    program = flow(tmp_path, body("GeMM"), group, block_size=block, budget=4)
    compare_with_alone(program, page, edge_lengths(page), steps=2)


STATE = """
    def forward_indexer(self, q, c):
        s = GeMM(c["k"], Mean(q, dim="head"))
        acc = c.get("acc", -1.5) * 0.5 + Max(s, dim="token")
        last = c.get("last", 2.0)
        c["acc"], c["last"] = acc, Mean(q, dim="head") + last * 0.5
        c["seen"] = c.get("seen", False) | (acc > 0)
        return topK(acc + Where(c["seen"], 0.5, 0.0) + Sum(c["last"]))
"""


@pytest.mark.parametrize("budget", [3, 1000])
def test_state_over_steps_that_finish_blocks(budget, tmp_path):
    program = flow(tmp_path, STATE, 3, block_size=4, budget=budget)
    compare_with_alone(program, 8, edge_lengths(8), steps=10)


HISTORY = """
    def forward_indexer(self, q, c):
        before = c.get("new", -1.0)
        c["new"] = Mean(q, dim="head")
        c["old"] = before
        return topK(Positions().index * 1.0)
"""


def test_a_state_may_keep_what_another_held_before(tmp_path):
    engine = decode(flow(tmp_path, HISTORY, block_size=4, budget=3), [40], steps=3)
    expected = torch.full((2, 8), -1.0)
    for step in range(3):
        engine.step(step)
        assert torch.equal(engine.storage.states[0]["old"].data[0], expected)
        expected = engine.requests[0].q[step]


PRODUCT = """
    def forward_cache(self, c):
        c["low"] = GeMM(c["k"], Parameter("p", "dim r=16", init="normal"))

    def forward_indexer(self, q, c):
        return topK(Sum(c["low"], dim=("token", "r")))
"""


def test_summaries_do_not_depend_on_the_blocks_written_with_them(tmp_path):
    program = flow(tmp_path, PRODUCT, dim=64, block_size=1, budget=4)
    compare_with_alone(program, 4, [29, 7, 64, 0, 3], steps=2)


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_algorithm(path):
    program = traced(path, group=3, dim=16, budget=5, dense_layers="")
    page = 2 * program.policy.block_size
    compare_with_alone(program, page, edge_lengths(page), steps=3)
