"""Requests decoded together over a scrambled pool, and each alone over a contiguous one."""

from dataclasses import dataclass, field

import torch

from vortex.dsl.ir import Program, Shape
from vortex.dsl.load import trace_file
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.pool import KVPool
from vortex.vtensor.reference import ReferenceRunner
from vortex.vtensor.selection import Selection, check_selection

GARBAGE_PAGE = 2**30
"""In page-table entries that a request does not need."""


def edge_lengths(page: int, k: int = 3) -> list[int]:
    """Lengths around page edges; 0 is a padded slot."""
    return [1, max(page - 1, 1), page, page + 1, 0, k * page - 1, k * page, k * page + 1]


def flow(
    folder, body: str, group: int = 1, kv_heads: int = 2, dim: int = 8, layers: int = 2, **hyper
) -> Program:
    """The program of a flow whose class body is given."""
    path = folder / "flow.py"
    path.write_text("from vortex import *\n\n\nclass Flow(vFlow):\n" + body)
    return traced(path, group, kv_heads, dim, layers, **hyper)


def traced(path, group: int, kv_heads: int = 2, dim: int = 8, layers: int = 2, **hyper) -> Program:
    result = trace_file(path, hyper, Shape(group * kv_heads, kv_heads, dim, layers))
    assert result.errors == (), [each.message for each in result.errors]
    return result.program


@dataclass
class Tokens:
    """What a request's cache holds, contiguous: [tokens, kv heads, dim], and its queries by step."""

    k: torch.Tensor
    v: torch.Tensor
    q: torch.Tensor

    @staticmethod
    def random(length: int, steps: int, heads: Heads, generator: torch.Generator) -> "Tokens":
        def normal(*shape):
            return torch.randn(shape, generator=generator)

        shape = (length + steps, heads.kv, heads.dim)
        return Tokens(normal(*shape), normal(*shape), normal(steps, heads.query, heads.dim))


@dataclass
class Engine:
    """Requests over one pool, written token by token as an engine would; garbage wherever nothing was written.

    tables  int32 [requests, pages]
    """

    runner: ReferenceRunner
    heads: Heads
    requests: list[Tokens]
    lengths: list[int]
    tables: torch.Tensor
    page: int
    slots: list[int]
    layers: int = 1
    summarised: set[int] = field(default_factory=set)
    selections: list[Selection] = field(default_factory=list)

    def __post_init__(self):
        self.block = self.runner.block_size
        used = self.tables[self.tables < GARBAGE_PAGE]
        pages = int(used.max()) + 2 if used.numel() else 1
        shape = (pages * self.page, self.heads.kv, self.heads.dim)
        self.pool = KVPool({name: torch.full(shape, torch.nan) for name in ("k", "v")}, self.page)
        longest = max(len(each.k) for each in self.requests)
        self.storage = self.runner.allocate(
            layers=self.layers, pool_blocks=shape[0] // self.block, slots=max(self.slots) + 1,
            max_blocks=-(-longest // self.block), heads=self.heads, device=torch.device("cpu"),
        )  # fmt: skip

    def batch(self, step: int) -> Batch:
        lengths = [length + step if length else 0 for length in self.lengths]
        return Batch(
            torch.tensor(lengths, dtype=torch.int32), self.tables, torch.tensor(self.slots, dtype=torch.int32),
            self.page, self.block, self.heads,
        )  # fmt: skip

    def requests_q(self, step: int) -> torch.Tensor:
        """[requests, query heads, dim]"""
        return torch.stack([each.q[step] for each in self.requests])

    def step(self, step: int) -> list[Selection]:
        """Writes the tokens of a step, summarises what finished, selects in every layer."""
        batch = self.batch(step)
        batch.check_values()
        finished = set()
        for row, length in enumerate(batch.lengths.tolist()):
            position = torch.arange(length)
            slots = self.tables[row].long()[position // self.page] * self.page + position % self.page
            self.pool.tensors["k"][slots] = self.requests[row].k[:length]
            self.pool.tensors["v"][slots] = self.requests[row].v[:length]
            finished |= set(batch.pool_blocks(row, batch.finished_blocks(row)).tolist())
        new = torch.tensor(sorted(finished - self.summarised), dtype=torch.int64)
        self.summarised |= finished
        q = self.requests_q(step)
        made = []
        for layer in range(self.layers):
            self.runner.summarise(self.storage, layer, self.pool, new)
            made.append(self.runner.select(self.storage, layer, q, self.pool, batch))
            check_selection(made[-1], batch)
        self.selections = made
        return made

    def attended(self, row: int, layer: int = 0) -> list[list[int]]:
        """Block numbers that each KV head attended in the last step."""
        selection = self.selections[layer]
        counts = selection.counts[row].tolist()
        return [ids[:count].tolist() for ids, count in zip(selection.ids[row], counts, strict=True)]


def decode(
    program: Program, lengths: list[int], *, steps: int = 1, layers: int = 1, seed: int = 0, **options
):
    """Requests of these lengths, each with its own pages in order."""
    shape = program.shape
    heads = Heads(shape.query_heads, shape.kv_heads, shape.head_dim)
    generator = torch.Generator().manual_seed(seed)
    requests = [Tokens.random(length, steps, heads, generator) for length in lengths]
    block = program.policy.block_size
    width = max(-(-(length + steps) // block) for length in lengths)
    tables = torch.arange(len(lengths) * width, dtype=torch.int32).reshape(len(lengths), width)
    runner = ReferenceRunner(program, **options)
    return Engine(runner, heads, requests, lengths, tables, block, list(range(len(lengths))), layers)


def compare_with_alone(program: Program, page: int, lengths: list[int], *, steps: int, seed: int = 0) -> None:
    """Decodes the requests together and each alone: selections, entries and states are the same bits."""
    shape = program.shape
    heads = Heads(shape.query_heads, shape.kv_heads, shape.head_dim)
    generator = torch.Generator().manual_seed(seed)
    runner = ReferenceRunner(program)
    requests = [Tokens.random(length, steps if length else 0, heads, generator) for length in lengths]
    for each in requests:
        each.q = each.q if len(each.q) else torch.full((steps, heads.query, heads.dim), torch.nan)
    tables = _shared_tables(requests, lengths, page, steps, generator)
    slots = torch.randperm(len(lengths), generator=generator).tolist()
    together = Engine(runner, heads, requests, lengths, tables, page, slots)
    block = program.policy.block_size
    alone = {}
    for row, length in enumerate(lengths):
        if length:
            table = torch.arange(-(-(length + steps) // block), dtype=torch.int32)[None]
            alone[row] = Engine(runner, heads, [requests[row]], [length], table, block, [0])
    for step in range(steps):
        together.step(step)
        for row, one in alone.items():
            one.step(step)
            assert together.attended(row) == one.attended(0), (row, step)
            _same_storage(together, row, one, step)
    padded = [row for row, length in enumerate(lengths) if not length]
    assert not together.selections[0].counts[padded].any()


def _shared_tables(requests, lengths, page, steps, generator) -> torch.Tensor:
    """Pages in random order; the requests that are longer than a page have their first page in common."""
    width = max(-(-(length + steps) // page) for length in lengths) + 2
    order = iter(torch.randperm(len(lengths) * width, generator=generator).tolist())
    tables = torch.full((len(lengths), width), GARBAGE_PAGE, dtype=torch.int32)
    for row, length in enumerate(lengths):
        needed = -(-(length + steps) // page) if length else 0
        tables[row, :needed] = torch.tensor([next(order) for _ in range(needed)], dtype=torch.int32)
    long = [row for row, length in enumerate(lengths) if length > page]
    for row in long[1:]:
        tables[row, 0] = tables[long[0], 0]
        requests[row].k[:page] = requests[long[0]].k[:page]
        requests[row].v[:page] = requests[long[0]].v[:page]
    return tables


def _same_storage(together: Engine, row: int, one: Engine, step: int) -> None:
    batch = together.batch(step)
    ids = batch.pool_blocks(row, batch.finished_blocks(row))
    for name, entry in together.storage.entries[0].items():
        stored = one.storage.entries[0][name].data[: len(ids)]
        assert torch.equal(_bits(entry.data[ids]), _bits(stored)), (name, row, step)
    for name, state in together.storage.states[0].items():
        kept = state.data[together.slots[row]]
        expected = one.storage.states[0][name].data[0]
        if "block" in state.axes:
            kept, rest = kept[:, : expected.shape[1]], kept[:, expected.shape[1] :]
            default = together.runner.program.state(name).default
            assert bool((rest == default).all()), (name, row, step)
        assert torch.equal(_bits(kept), _bits(expected)), (name, row, step)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int32) if x.dtype == torch.float32 else x
