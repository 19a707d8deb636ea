"""Kernels against the reference executor: every shipped algorithm, every operator, every way values meet in a plan.

Without a GPU they run in Triton's interpreter on small shapes that cover all pairs of sizes and layouts.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.codegen.comparison import Comparison, Setup
from tests.codegen.shapes import edge_lengths, pairwise
from tests.vtensor.support import flow, traced
from tests.vtensor.test_batched_alone import USES, body
from vortex.codegen.compiled import CompiledFlow, Options
from vortex.codegen.steps import Kernel

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")

ALGORITHMS = sorted(Path(__file__).parents[2].joinpath("algorithms").glob("*.py"))
LEAST_BLOCK = {"infllm": 16, "infllm_v2": 16, "lserve": 16, "nsa": 16}
"""Algorithms that cut a block into parts."""

SHAPES = list(
    pairwise(
        {
            "group": (1, 3, 4, 5, 7, 8, 16),
            "dim": (64, 80, 96, 128, 256),
            "block": (1, 16, 32, 64, 128),
            "per_page": (1, 3),
            "kv": ("fp32", "fp16"),
            "in_step": (False, True),
            "strided": (True, False),
        }
    )
)
"""Sizes and layouts, any two values of different ones together at least once."""


def algorithm(
    path: Path, shape: dict, seed: int, kv_heads: int = 1, whole: bool = True, **policy
) -> Comparison:
    """An algorithm over the lengths around page edges (a third of them unless `whole`) and a longer one."""
    block = max(shape["block"], LEAST_BLOCK.get(path.stem, 1))
    policy = {"budget": 4, "dense_layers": "", "reuse_steps": 1, "reuse_layers": 1, **policy}
    program = traced(path, shape["group"], kv_heads, shape["dim"], 2, block_size=block, **policy)
    chosen = {name: shape[name] for name in ("kv", "per_page", "in_step", "strided")}
    setup = Setup(**chosen, form=("split", "fused")[seed % 2], layers=1)
    edges = edge_lengths(block * shape["per_page"])
    lengths = edges if whole else [edges[1 + seed % 3], 0, edges[5 + seed % 3]]
    steps = 2 if whole or program.states else 1
    return Comparison(program, [*lengths, 9 * block + 1], setup, seed).run(steps)


def check(made: Comparison) -> None:
    """Selections that differ because rounding decides are the exception."""
    assert made.compared
    assert made.excused <= made.compared / 10, (made.excused, made.compared)


def test_pairs_of_sizes_are_covered():
    for a, b in (("group", "dim"), ("dim", "block"), ("block", "in_step"), ("group", "kv")):
        seen = {(row[a], row[b]) for row in SHAPES}
        assert len(seen) == len({row[a] for row in SHAPES}) * len({row[b] for row in SHAPES})
    assert len(SHAPES) <= len(ALGORITHMS), "every row is run with one algorithm at least"


@pytest.mark.parametrize("number", range(len(ALGORITHMS)), ids=lambda number: ALGORITHMS[number].stem)
def test_algorithm(number):
    check(algorithm(ALGORITHMS[number], SHAPES[number % len(SHAPES)], number, whole=False))


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(1, 7))
@pytest.mark.parametrize("number", range(len(ALGORITHMS)), ids=lambda number: ALGORITHMS[number].stem)
def test_algorithm_in_other_shapes(number, turn):
    shape = SHAPES[(number + 11 * turn) % len(SHAPES)]
    check(algorithm(ALGORITHMS[number], shape, number + 101 * turn, kv_heads=2, budget=5))


@pytest.mark.parametrize("name", ["quest", "coarse_to_fine", "h2o"])
@pytest.mark.parametrize("workers", [1, 8, 64])
def test_memory_for_longer_requests_than_there_are(name, workers):
    """Chunks that no request has, with fewer thread blocks than listed chunks, with more, and without a list."""
    path = next(path for path in ALGORITHMS if path.stem == name)
    program = traced(path, 2, 2, 64, 1, block_size=1, budget=5, dense_layers="", sink_blocks=1)
    made = Comparison(program, [90, 1, 0, 40], Setup(layers=1, form="split"), workers)
    built = made.flow.built
    schedules = {
        number: replace(built.of_step(number).schedule, tile=16, workers=workers)
        for number, step in enumerate(built.plan.steps)
        if isinstance(step, Kernel) and step.kind == "map"
    }
    made.flow = CompiledFlow(program, Options("fp32"), form="split", schedules=schedules)
    made.memory = made.flow.allocate(layers=1, pool_blocks=made.pages, slots=5, max_blocks=made.memory.max_blocks,
                                     heads=made.heads, device=made.device)  # fmt: skip
    for lengths in ([90, 1, 0, 40], [3, 18, 0, 1], [0, 0, 0, 17]):
        made.restart(lengths, workers)
        made.run()
    check(made)


@pytest.mark.parametrize("op", sorted(USES))
def test_operator_in_both_functions(op, tmp_path):
    number = sorted(USES).index(op)
    block, pages = (1, 8, 16)[number % 3], 1 + number % 2
    program = flow(tmp_path, body(op), (1, 3, 4, 5)[number % 4], 1, block_size=block, budget=4)
    setup = Setup(("fp32", "fp16")[number % 2], pages, in_step=number % 2 == 0, layers=1)
    check(Comparison(program, [1, block * pages + 1, 0, 11 * block], setup, number).run())


MEETINGS = {
    "topK of a scatter": "return topK(Scatter(Gather(s, topK(s, k=5)), fill=-1.0))",
    "topK of a union's members": "return topK(Gather(s, Union(First(1), Last(2), topK(s, k=5))), k=4)",
    "conv of a scan": "return topK(Conv1d(CumSum(s), [0.5, 1.0, 0.25]))",
    "conv of a scatter": "return topK(Conv1d(Scatter(Gather(s, topK(s, k=5)), fill=-1.0), [0.5, 1.0, 0.25]))",
    "conv of a set": "return topK(Conv1d(topK(s, k=5), [0.5, 1.0, 0.25]) + s)",
    "conv of members": "return topK(Conv1d(Gather(s, topK(s, k=7)), [1.0, 0.5, -0.5]))",
    "scan of members": "return topK(CumSum(Gather(s, topK(s, k=6))))",
    "softmax of members": "return topK(Softmax(Gather(s, Union(First(2), topK(s, k=5)))))",
    "members of members": "f = Gather(s * 2.0, topK(s, k=8)); return topK(Gather(-s, topK(f, k=5)), k=4)",
    "the result is also counted": 'i = topK(s, k=4); c["n"] = c.get("n", 0.0) + Where(i, 1.0, 0.0); return i',
    "reductions over block": 'return topK((s - Mean(s, dim="block")) * Max(s, dim="block") * Min(s, dim="block"))',
    "product over block": (
        'h = GeMM(e, q.T); w = GeMM(Transpose(h, "head", "block"), e); return topK(Max(GeMM(e, w.T), dim=2))'
    ),
    "softmax over block and head": 'return topK(Sum(Softmax(GeMM(e, q.T), dim=("block", "head")), dim="head"))',
    "topP of members": "w = Sigmoid(s); return topP(Gather(w, topK(w, k=6)), 0.5)",
    "topP that may take all": "return topP(Sigmoid(s), 0.8)",
    "threshold of members": "return Threshold(Gather(s, topK(s, k=6)), 0.0)",
    "a boolean of positions": "return (Positions().index % 3 == 1) | (Positions().from_end < 2)",
    "a union of all kinds": "return Union(topK(s, k=3), First(2), s > 1.0)",
    "members of a boolean": "return topK(Gather(s, s > 0.0), k=5)",
    "a vector as state": 'm = c.get("m", 0.5) * 0.5 + one; c["m"] = m; return topK(Sum(e * m, dim="dim"))',
    "a boolean as state": 'c["b"] = c.get("b", False) | (s > 0.5); return topK(Where(c["b"], s, s - 1.0))',
    "a state from all tokens": (
        'c["a"] = c.get("a", 0.5) * 0.5 + Max(GeMM(c["k"], one), dim="token"); return topK(c["a"] + s)'
    ),
    "nothing but no block": "return topK(s - 1e30 * Sqrt(s * s) / 0.0)",
    "k by length": 'return topK(s, k="max(2, 30% * blocks)")',
    "k below the budget": "return topK(s, k=2)",
    "infinite values beside padded heads": (
        'b = Abs(e) / Relu(s - 0.5); return topK(Sum(GeMM(b, Where(q > 0.0, q, -q).T), dim="head"))'
    ),
    "a number to a power": "return topK(2.0 ** Tanh(s) + Abs(s) ** 0.5 + Tanh(s) ** 3)",
}  # fmt: skip


def meeting(name: str) -> str:
    lines = "\n".join(f"        {line.strip()}" for line in MEETINGS[name].split("; "))
    return f"""
    def forward_cache(self, c):
        c["e"] = Mean(c["k"])

    def forward_indexer(self, q, c):
        e, one = c["e"], Mean(q, dim="head")
        s = Sum(e * one)
{lines}
"""


def policies(number: int) -> dict:
    """Reserved blocks, budgets and shared heads in turn."""
    return {
        "sink_blocks": number % 3, "recent_blocks": number // 3 % 2, "budget": (4, "blocks / 2")[number % 2],
        "share_heads": (False, False, "sum", False, "max", False, "mean")[number % 7],
    }  # fmt: skip


@pytest.mark.parametrize("name", MEETINGS)
def test_where_values_meet(name, tmp_path):
    number = list(MEETINGS).index(name)
    block, pages = (1, 8, 16)[number % 3], 1 + number % 2
    policy = policies(number)
    heads = 3 if policy["share_heads"] else 1
    program = flow(tmp_path, meeting(name), (1, 3, 4, 5)[number % 4], heads, block_size=block, **policy)
    setup = Setup("fp32", pages, in_step=number % 2 == 0, shortcut=number % 4 != 0, form="fused", layers=1)
    check(Comparison(program, [1, block * pages + 1, 0, 21 * block], setup, number).run(2))


@pytest.mark.parametrize(
    "result",
    ["Threshold(s, 0.2, max='blocks')", "topP(Sigmoid(s), 0.6)", "topK(s)", "topK(Gather(s, topK(s, k=6)))"],
)
@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_kv_heads_that_select_together(how, result, tmp_path):
    text = meeting("k below the budget").replace("topK(s, k=2)", result)
    program = flow(tmp_path, text, 2, 3, block_size=8, budget=5, share_heads=how)
    check(Comparison(program, [9, 0, 150], Setup(layers=1, form="fused"), 11).run(2))


CASTS = ("fp32", "fp16", "int8", "int4", "sign", "int32", "bool")


def cast_flow(kind: str, entry: str) -> str:
    """Entries of a matrix, a vector with a last axis of odd size, and a number, stored as a Cast says."""
    return f"""
    def forward_cache(self, c):
        k = {entry}
        c["matrix"] = Cast(Max(Split(k, "token", part=2, token=4), dim="token"), "{kind}")
        c["vector"] = Cast(Mean(k)[:, :7], "{kind}")
        c["short"] = Cast(Mean(k)[:, :1], "{kind}")

    def forward_indexer(self, q, c):
        one = Mean(q, dim="head")
        s = Sum(c["matrix"] * one, dim=("part", "dim")) + Sum(c["vector"] * one[:, :7]) + Sum(c["short"] * 0.5)
        return topK(s)
"""


@pytest.mark.parametrize("kind", CASTS)
def test_storage_of_a_cast(kind, tmp_path):
    entry = 'c["k"] * 3.0' if kind == "int32" else 'c["k"]'
    program = flow(tmp_path, cast_flow(kind, entry), 3, 2, 9, block_size=8, budget=4)
    check(Comparison(program, [1, 17, 0, 90], Setup("fp32", 2, layers=1), 3).run(2))


@pytest.mark.parametrize("kind", ["int8", "int4", "sign"])
def test_the_largest_dims_pack_too(kind, tmp_path):
    text = cast_flow(kind, 'c["k"]')
    program = flow(tmp_path, text, 4, 1, 80, block_size=8, budget=4)
    check(Comparison(program, [1, 17, 0, 90], Setup("fp16", in_step=True, layers=1), 4).run(2))


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize(
    "dense", [{"dense_layers": "1"}, {"dense_below": 40}, {"dense_layers": "0", "dense_below": 99}]
)
@pytest.mark.parametrize("text", ["the result is also counted", "k below the budget", "conv of a scan"])
def test_dense_rows(text, dense, shortcut, tmp_path):
    program = flow(tmp_path, meeting(text), 3, 1, block_size=8, budget=3, **dense)
    check(Comparison(program, [8, 39, 0, 41, 100], Setup(shortcut=shortcut), 5).run(2))


@pytest.mark.parametrize("reuse", [2, 3])
def test_layers_that_reuse_a_selection(reuse, tmp_path):
    program = flow(tmp_path, meeting("k by length"), 2, 2, layers=4, block_size=8, reuse_layers=reuse)
    check(Comparison(program, [9, 0, 100], Setup(layers=4), 6).run(2))


LATER = {
    "longer": [1, 0, 70, 150],
    "shorter": [33, 9, 0, 1],
    "all padded": [0, 0, 0, 0],
}


@pytest.mark.parametrize("name", ["conv of a scatter", "the result is also counted", "softmax of members"])
def test_other_requests_in_the_memory_of_earlier_ones(name, tmp_path):
    """EDGE 9: shorter and longer sequences, other pages and padded slots over what a longer step left behind."""
    program = flow(tmp_path, meeting(name), 3, 1, block_size=8, budget=5)
    made = Comparison(program, [150, 40, 17, 0], Setup("fp32", 2, layers=1, in_step=True), 7).run()
    for number, lengths in enumerate(LATER.values()):
        made.restart(lengths, 8 + number)
        made.run()
    check(made)


@pytest.mark.parametrize("parts", [1, 3])
def test_summaries_at_the_start_of_a_step_repair_what_is_not_valid(tmp_path, monkeypatch, parts):
    """Pages that came around the backend, or were given to another request, are summarised again; others are kept."""
    import torch

    monkeypatch.setattr("vortex.codegen.summaries.parts_of", lambda programs, on_gpu: parts)
    program = flow(tmp_path, meeting("k by length"), 2, 2, block_size=8, budget=4)
    made = Comparison(program, [100, 0, 65, 9], Setup("fp32", 2, in_step=True), 9).run()
    kept = made.memory.entries[0]["e"].clone()
    blocks = made.batch(1).pool_blocks(0, 12)
    again = blocks[[2, 3, 7]]
    made.memory.valid[again] = 0
    for layer in made.memory.entries:
        layer["e"][again] = torch.nan
        layer["e"][blocks[5]] = 7.0
    made.flow.summarise_step(made.memory, made.pools[0], made.batch(1))
    expected = kept.clone()
    expected[blocks[5]] = 7.0
    held = made.memory.entries[0]["e"]
    summarised = torch.tensor(sorted(made.summarised))
    assert torch.equal(held[summarised], expected[summarised])
    assert torch.equal(made.memory.valid.nonzero().flatten(), summarised)
