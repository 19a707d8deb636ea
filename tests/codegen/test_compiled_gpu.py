"""The kernels on a CUDA device: bf16 and fp8 pools, all shapes, graphs that are replayed, pools above 2^31 elements.

A case compiles for seconds and the cases are cut into TURNS parts, which processes can run side by side:

    for turn in $(seq 10 21); do python -m pytest -m gpu tests/codegen/test_compiled_gpu.py -k "turn$turn" & done; wait
"""

import itertools

import pytest
import torch

from tests.codegen.comparison import Comparison, Setup, copied
from tests.codegen.shapes import edge_lengths, pairwise
from tests.codegen.test_compiled import (
    ALGORITHMS,
    CASTS,
    LEAST_BLOCK,
    MEETINGS,
    cast_flow,
    check,
    meeting,
    policies,
)
from tests.generate import generate
from tests.vtensor.support import flow, traced
from tests.vtensor.test_batched_alone import USES, body
from vortex.codegen.compiled import CompiledFlow, Options
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.pool import KVPool

pytestmark = pytest.mark.gpu

TURNS = 12
SHAPES = list(
    pairwise(
        {
            "group": (1, 3, 4, 5, 7, 8, 16),
            "dim": (64, 80, 96, 128, 256),
            "block": (1, 16, 32, 64, 128),
            "per_page": (1, 3),
            "kv": ("bf16", "fp16", "fp32", "fp8"),
            "in_step": (False, True),
            "strided": (True, False),
        }
    )
)
FULL = list(itertools.product((1, 3, 4, 5, 7, 8, 16), (64, 80, 96, 128, 256), (1, 16, 32, 64, 128)))


def turns(cases):
    """The cases as parameters, cut into parts that a -k turn10 … turn21 picks."""
    return [pytest.param(each, id=f"{each}-turn{10 + at % TURNS}") for at, each in enumerate(cases)]


def setup(shape, **options):
    chosen = {name: shape[name] for name in ("kv", "per_page", "in_step", "strided")}
    return Setup(**chosen, device="cuda", **options)


def made(path, shape, seed, *, kv_heads=2, **policy):
    block = max(shape["block"], LEAST_BLOCK.get(path.stem, 1))
    policy = {"budget": 4, "dense_layers": "", "reuse_steps": 1, "reuse_layers": 1, **policy}
    program = traced(path, shape["group"], kv_heads, shape["dim"], 2, block_size=block, **policy)
    lengths = [*edge_lengths(block * shape["per_page"]), 40 * block + 1]
    return Comparison(program, lengths, setup(shape, form=("split", "fused")[seed % 2], layers=1), seed)


@pytest.mark.parametrize("case", turns([(at, turn) for turn in range(4) for at in range(len(ALGORITHMS))]))
def test_algorithm(case):
    number, turn = case
    check(made(ALGORITHMS[number], SHAPES[(number + turn * 11) % len(SHAPES)], number + turn).run(2))


@pytest.mark.parametrize("case", turns(range(len(FULL))))
def test_every_size_of_group_dim_and_block(case):
    group, dim, block = FULL[case]
    path = next(path for path in ALGORITHMS if path.stem == ("block_topk", "quest")[case % 2])
    shape = {"group": group, "dim": dim, "block": block, "per_page": 1 + case % 3, "kv": "bf16", "in_step": True,
             "strided": case % 2 == 0}  # fmt: skip
    check(made(path, shape, case).run())


@pytest.mark.parametrize("op", turns(sorted(USES)))
def test_operator_in_both_functions(op, tmp_path):
    number = sorted(USES).index(op)
    shape = {"kv": ("bf16", "fp32", "fp16")[number % 3], "per_page": 1 + number % 2, "in_step": number % 2 == 0,
             "strided": True}  # fmt: skip
    block = (1, 8, 16)[number % 3]
    program = flow(tmp_path, body(op), (1, 3, 4, 5)[number % 4], 2, block_size=block, budget=4)
    check(Comparison(program, [1, block * 2 + 1, 0, 50 * block], setup(shape, layers=1), number).run(2))


@pytest.mark.parametrize("name", turns(list(MEETINGS)))
def test_where_values_meet(name, tmp_path):
    number = list(MEETINGS).index(name)
    shape = {"kv": "fp32", "per_page": 1 + number % 2, "in_step": True, "strided": True}
    block = (1, 8, 16)[number % 3]
    program = flow(tmp_path, meeting(name), (1, 3, 4, 5)[number % 4], 3, block_size=block, **policies(number))
    check(Comparison(program, [1, block * 2 + 1, 0, 90 * block], setup(shape, layers=1), number).run(2))


@pytest.mark.parametrize("kind", turns([*CASTS, "bf16", "fp8"]))
def test_storage_of_a_cast(kind, tmp_path):
    entry = 'c["k"] * 3.0' if kind == "int32" else 'c["k"]'
    program = flow(tmp_path, cast_flow(kind, entry), 3, 2, 9, block_size=8, budget=4)
    shape = {"kv": "bf16", "per_page": 2, "in_step": True, "strided": True}
    check(Comparison(program, [1, 17, 0, 90], setup(shape, layers=1), 3).run(2))


@pytest.mark.parametrize("seed", turns(range(60)))
def test_a_random_program(seed):
    program = generate(seed).program
    block, shape = (
        program.policy.block_size,
        {"kv": "fp32", "per_page": 1 + seed % 2, "in_step": True, "strided": True},
    )
    tested = Comparison(program, [1, block + 1, 0, 30 * block + 3], setup(shape, layers=1), seed).run(2)
    assert tested.excused <= tested.compared / 4


class Captured(Comparison):
    """Runs its steps from one CUDA graph, over buffers whose contents change and whose addresses do not."""

    graph = None

    def launch(self, new, queries, batch):
        if self.graph is None:
            self._capture(queries, batch)
        for held, now in zip(self.queries_held, queries, strict=True):
            held.copy_(now)
        for name in ("lengths", "page_table", "slots"):
            getattr(self.batch_held, name).copy_(getattr(batch, name))
        self.graph.replay()
        torch.cuda.synchronize()
        return [copied(each) for each in self.found]

    def _run(self):
        self.flow.plan(self.memory, self.batch_held)
        self.flow.summarise_step(self.memory, self.device_pools[0], self.batch_held)
        return [
            copied(self.flow.select(self.memory, layer, q, self.device_pools[layer], self.batch_held))
            for layer, q in enumerate(self.queries_held)
        ]

    def _capture(self, queries, batch):
        """Before capture one run compiles; what it left behind is put back, or spoiled where it must not matter."""
        self.queries_held = [torch.empty_like(each).copy_(each) for each in queries]
        tensors = (each.clone() for each in (batch.lengths, batch.page_table, batch.slots))
        self.batch_held = Batch(*tensors, batch.page_size, batch.block_size, batch.heads)
        self.flow.bind_layers(self.memory, self.device_pools)
        states = [{name: each.clone() for name, each in layer.items()} for layer in self.memory.states]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.found = self._run()
        for layer, held in zip(self.memory.states, states, strict=True):
            for name, each in held.items():
                layer[name].copy_(each)
        self.memory.valid.zero_()


GRAPHS = [
    "block_topk",
    "quest_int8",
    "h2o",
    "softmax_topk",
    "coarse_to_fine",
    "twilight",
    "snapkv",
    "streaming_llm",
]


@pytest.mark.parametrize("name", turns(GRAPHS))
def test_a_captured_graph_serves_other_lengths_and_page_tables(name):
    """EDGE 9: captured for 8 requests; replayed for 5, then with longer, then with shorter sequences, then padded."""
    path = next(path for path in ALGORITHMS if path.stem == name)
    program = traced(path, 4, 2, 128, 2, block_size=16, budget=5, dense_layers="")
    graph = Captured(
        program, [900, 33, 1, 500, 640, 17, 48, 47], Setup("bf16", 2, layers=2, device="cuda"), 3
    ).run(3)
    later = ([900, 33, 1, 500, 640, 0, 0, 0], [899, 700, 880, 650, 640, 900, 47, 200], [1, 16, 17, 31, 32, 33, 2, 0],
             [0] * 8)  # fmt: skip
    for seed, lengths in enumerate(later):
        graph.restart(lengths, seed)
        graph.run(2)
    check(graph)


LARGE = """
    def forward_cache(self, c):
        c["mean"] = Mean(c["k"])
        c["all"] = c["k"] + c["v"]

    def forward_indexer(self, q, c):
        one = Mean(q, dim="head")
        s = GeMM(c["all"], one)
        acc = c.get("acc", 0.0) * 0.5 + Max(s, dim="token")
        c["acc"] = acc
        return topK(acc + Sum(c["mean"] * one))
"""


def test_pools_and_entries_above_2_to_the_31_elements_turn10(tmp_path):
    """EDGE 16: the same requests at the end of a large pool, and in a small one: the same bits."""
    program = flow(tmp_path, LARGE, 4, 1, 128, layers=1, block_size=16, budget=20)
    heads, device, pages = Heads(4, 1, 128), torch.device("cuda"), 64
    largest = 2**31 // (16 * 128) + pages  # blocks of an entry of [16, 128]
    lengths = torch.tensor([700, 0, 311, 16], dtype=torch.int32, device=device)
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(0)).to(torch.int32)
    q = torch.randn(4, 4, 128, device=device).bfloat16()
    values = {name: torch.randn(pages * 16, 1, 128, device=device).bfloat16() for name in ("k", "v")}
    results = []
    for blocks in (pages, largest):
        first = blocks - pages
        compiled = CompiledFlow(program, Options("bf16"))
        memory = compiled.allocate(
            layers=1, pool_blocks=blocks, slots=4, max_blocks=64, heads=heads, device=device
        )
        pool = KVPool({name: torch.empty(blocks * 16, 1, 128, device=device, dtype=torch.bfloat16)
                       for name in values}, 16)  # fmt: skip
        for name, each in values.items():
            pool.tensors[name][first * 16 :] = each
        rows = torch.full((4, 44), -1, dtype=torch.int32)
        rows[0], rows[2, :20], rows[3, 0] = table[:44], table[44:64], table[3]
        rows = torch.where(rows >= 0, rows + first, rows).to(device)
        slots = torch.arange(4, dtype=torch.int32, device=device)
        batch = Batch(lengths, rows, slots, 16, 16, heads)
        compiled.bind_layers(memory, [pool])
        compiled.summarise_step(memory, pool, batch)
        found = [compiled.select(memory, 0, q, pool, batch) for _ in range(2)][-1]
        entries = {name: each[first:][memory.valid[first:] != 0] for name, each in memory.entries[0].items()}
        results.append((found.ids.clone(), found.counts.clone(), entries, memory.states[0]["acc"].clone()))
        assert int(memory.valid.sum()) == 43 + 19
        del memory, pool, compiled
        torch.cuda.empty_cache()
    small, large = results
    assert largest > 65536 and largest * 16 * 128 > 2**31
    assert torch.equal(small[0], large[0]) and torch.equal(small[1], large[1])
    assert torch.equal(small[3], large[3])
    for name in small[2]:
        assert torch.equal(small[2][name], large[2][name]), name
