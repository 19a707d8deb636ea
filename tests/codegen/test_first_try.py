"""What files written by new users found: parts that no shipped algorithm needs."""

import pytest
from comparison import Comparison, Setup

from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_source
from vortex.dsl.source import Source

HEAD = "from vortex import *\n\n\nclass Flow(vFlow):\n    budget = 4\n"

FLOWS = {
    "an orthogonal parameter": '''
    basis = Parameter("basis", "layer kv dim r=8", init="orthogonal")

    def forward_cache(self, c):
        c["low"] = c["k"] @ self.basis

    def forward_indexer(self, q, c):
        return topK(Max(c["low"] @ (q @ self.basis).T, dim=("token", "head")))
''',
    "a merged parameter, sizes no powers of two": '''
    planes = Parameter("planes", "layer kv dim table=3 bit=5", init="normal")

    def forward_cache(self, c):
        c["sig"] = Mean(c["k"], dim="token") @ Merge(self.planes, "table", "bit", to="sig")

    def forward_indexer(self, q, c):
        return topK(Max(GeMM(c["sig"], (q @ Merge(self.planes, "table", "bit", to="sig")).T)))
''',
    "merged keys, sizes no powers of two": '''
    def forward_cache(self, c):
        c["few"] = c["k"][:, :3]

    def forward_indexer(self, q, c):
        flat = Merge(c["few"], "token", "dim", to="feat")
        return topK(Max(flat * Positions().index, dim="feat"))
''',
    "a product within a block": '''
    block_size = 32

    def forward_cache(self, c):
        pair = GeMM(c["k"], Rename(c["k"], token="other").T)
        c["mean"] = Sum(c["k"] * Mean(Softmax(pair, dim="other"), dim="other"), dim="token")

    def forward_indexer(self, q, c):
        return topK(Max(GeMM(c["mean"], q.T)))
''',
    "a product over an axis that tensor cores widened": '''
    block_size = 16

    def forward_cache(self, c):
        c["low"] = c["k"] @ Parameter("low", "layer kv dim r=16", init="normal")

    def forward_indexer(self, q, c):
        s = Relu(c["low"] @ q[:, :16].T) - 1.0
        weight = Sum(q, dim="dim")
        return topK(Max(Sum(s * weight, dim="head"), dim="token"))
''',
    "a number as state": '''
    def forward_cache(self, c):
        c["mean"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        step = c.get("step", 0.0)
        s = GeMM(c["mean"], q.T)
        c["step"] = step + 1
        return topK(Where(step % 2 == 0, Max(s), Min(s)))
''',
    "a threshold that the row decides": '''
    def forward_cache(self, c):
        c["mean"] = Mean(c["k"], dim="token")

    def forward_indexer(self, q, c):
        s = Max(GeMM(c["mean"], q.T))
        mean = Mean(s, dim="block")
        return Threshold(s, t=mean + Sqrt(Mean((s - mean) ** 2, dim="block")), max="50% * blocks")
''',
}  # fmt: skip


@pytest.mark.parametrize("group", [2, 3])
@pytest.mark.parametrize("name", FLOWS)
def test_compiled_and_reference_select_the_same(name, group):
    program = trace_source(Source("flow.py", HEAD + FLOWS[name]), shape=Shape(2 * group, 2, 16, 2)).program
    Comparison(program, [1, 83, 128], Setup(layers=1)).run(2)


def test_a_dense_layer_under_a_budget_that_covers_everything_lists_nothing():
    flow = HEAD.replace("budget = 4", "budget = 64") + "    dense_layers = '0'\n" + FLOWS["a number as state"]
    stateless = (
        HEAD.replace("budget = 4", "budget = 64\n    dense_layers = '0'")
        + FLOWS["merged keys, sizes no powers of two"]
    )
    for text in (flow, stateless):
        program = trace_source(Source("flow.py", text), shape=Shape(4, 2, 16, 2)).program
        Comparison(program, [1, 83, 0, 40], Setup(layers=2)).run(2)


def test_more_blocks_are_reserved_than_the_memory_holds():
    flow = FLOWS["a number as state"]
    program = trace_source(
        Source("flow.py", HEAD + "    sink_blocks, recent_blocks = 2, 8\n" + flow), shape=Shape(4, 2, 16, 2)
    ).program
    Comparison(program, [1, 83, 40], Setup(layers=1)).run(2)
