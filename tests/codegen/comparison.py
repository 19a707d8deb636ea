"""A compiled flow beside the reference executor, decoding the same ragged requests over memory full of garbage.

After every step entries are compared as stored, states by their measured error, and selections by agreement. The
references then continue from what the kernels stored, so that every difference is found where it arises.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tests.codegen.stored import read_entry, size_of, spoil, storage_step
from vortex.codegen.compiled import CompiledFlow, Options
from vortex.dsl.ir import Program
from vortex.vtensor.agree import disagreements
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.pool import KVPool
from vortex.vtensor.reference import ReferenceRunner
from vortex.vtensor.selection import Selection, check_selection
from vortex.vtensor.weights import load_weights

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
GARBAGE_PAGE = 2**30
NUDGE = 4e-6
"""Relative change of the inputs under which a selection that rounding decides shows itself."""


@dataclass(frozen=True)
class Setup:
    """How a batch lies in memory, and how summaries are made.

    per_page   blocks of a page; strided: K and V are halves of one allocation, rows of q are apart
    in_step    summaries through the kernels at the start of a step instead of block by block
    form       how rows are run: "fused" where the flow allows it, "split", or as estimated
    """

    kv: str = "fp32"
    per_page: int = 1
    strided: bool = True
    in_step: bool = False
    shortcut: bool = True
    form: str = "auto"
    layers: int = 2
    device: str = "cpu"


@dataclass
class Comparison:
    """One flow, compiled and as the reference runs it, over requests of the given lengths.

    excused   selections of rows that differ, and that the reference changes as well when inputs are nudged
    compared  selections of rows that were compared
    """

    program: Program
    lengths: Sequence[int]
    setup: Setup = field(default_factory=Setup)
    seed: int = 0
    most_steps: int = 4
    excused: int = 0
    compared: int = 0

    def __post_init__(self) -> None:
        shape, setup = self.program.shape, self.setup
        self.heads = Heads(shape.query_heads, shape.kv_heads, shape.head_dim)
        self.block = self.program.policy.block_size
        self.page = self.block * setup.per_page
        self.device = torch.empty(0, device=setup.device).device
        weights = stored_weights(self.program)
        options = {"shortcut": setup.shortcut, "weights": weights}
        self.fp32 = ReferenceRunner(self.program, **options)
        self.fp64 = ReferenceRunner(self.program, dtype="fp64", **options)
        self.flow = CompiledFlow(self.program, Options(setup.kv), form=setup.form, **options)
        longest = max(self.lengths) + self.most_steps
        self.width = -(-longest // self.page) + 2
        self.pages = len(self.lengths) * self.width + 3
        memory = {
            "layers": setup.layers, "pool_blocks": self.pages * setup.per_page, "slots": len(self.lengths) + 1,
            "max_blocks": -(-longest // self.block) + 3, "heads": self.heads,
        }  # fmt: skip
        host = torch.device("cpu")
        self.memory32 = self.fp32.allocate(**memory, device=host)
        self.memory64 = self.fp64.allocate(**memory, device=host)
        self.memory = self.flow.allocate(**memory, device=self.device)
        self.pools = [self._empty_pool() for _ in range(setup.layers)]
        self.device_pools = self.pools
        if self.device.type != "cpu":
            self.device_pools = [moved(pool, self.device) for pool in self.pools]
        self._spoil()
        self.restart(self.lengths, self.seed)

    # Memory

    def _empty_pool(self) -> KVPool:
        shape = (self.pages * self.page, 2, self.heads.kv, self.heads.dim)
        both = torch.full(shape, torch.nan).to(DTYPES[self.setup.kv])
        k, v = both[:, 0], both[:, 1]
        if not self.setup.strided:
            k, v = k.contiguous(), v.contiguous()
        scales = {"k": 0.5, "v": 2.0} if self.setup.kv == "fp8" else None
        return KVPool({"k": k, "v": v}, self.page, scales)

    def _spoil(self) -> None:
        """Garbage in all memory that a kernel must write before it is read."""
        space = self.flow.workspace(self.memory, len(self.lengths), self.setup.per_page, self.device)
        for each in (*space.buffers.values(), space.finished, space.take, space.dense, space.repair):
            spoil(each)
        for work, count in space.work.values():
            spoil(work), spoil(count)
        for made in space.sets.values():
            spoil(made.out.ids), spoil(made.out.counts)
        for layer in (*self.memory.entries, *self.memory.scales):
            for tensor in layer.values():
                spoil(tensor)
        for layer in self.memory.states:
            for tensor in layer.values():
                tensor.fill_(torch.nan)

    def restart(self, lengths: Sequence[int], seed: int) -> None:
        """Other requests in the same memory: lengths, pages, state slots, tokens."""
        assert len(lengths) == len(self.lengths)
        self.lengths, self.step_number = list(lengths), 0
        self.random = torch.Generator().manual_seed(seed)
        self.slots = torch.randperm(len(lengths) + 1, generator=self.random)[: len(lengths)].to(torch.int32)
        self._allot_pages()
        for pool in self.pools:
            for tensor in pool.tensors.values():
                values = torch.randn(tensor.shape, generator=self.random)
                self._fill(tensor, values)
        for slot in range(len(lengths) + 1):
            self.fp32.reset_slot(self.memory32, slot)
            self.fp64.reset_slot(self.memory64, slot)
        for slot in self.slots.tolist():
            self.flow.reset_slot(self.memory, slot)
        self.memory.valid.zero_()
        self.summarised: set[int] = set()
        if self.device.type != "cpu":
            for ours, pool in zip(self.device_pools, self.pools, strict=True):
                for name, tensor in pool.tensors.items():
                    ours.tensors[name].copy_(tensor)

    def _allot_pages(self) -> None:
        """Pages in random order; requests longer than a page have their first page in common."""
        order = iter((torch.randperm(self.pages - 1, generator=self.random) + 1).tolist())
        table = torch.full((len(self.lengths), self.width), GARBAGE_PAGE, dtype=torch.int32)
        for row, length in enumerate(self.lengths):
            needed = -(-(length + self.most_steps) // self.page) if length else 0
            table[row, :needed] = torch.tensor([next(order) for _ in range(needed)], dtype=torch.int32)
        long = [row for row, length in enumerate(self.lengths) if length > self.page]
        for row in long[1:]:
            table[row, 0] = table[long[0], 0]
        self.table = table

    def _fill(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Values where requests have (or will have) tokens, NaN everywhere else."""
        known = torch.zeros(tensor.shape[0], dtype=torch.bool)
        for row, length in enumerate(self.lengths):
            positions = torch.arange(length + self.most_steps if length else 0)
            known[self.table[row].long()[positions // self.page] * self.page + positions % self.page] = True
        tensor.copy_(torch.where(known[:, None, None], values, torch.nan).to(tensor.dtype))

    # Steps

    def batch(self, step: int, device: torch.device | None = None) -> Batch:
        lengths = torch.tensor([length + step if length else 0 for length in self.lengths], dtype=torch.int32)
        tensors = [lengths, self.table, self.slots]
        if device is not None:
            tensors = [each.to(device) for each in tensors]
        return Batch(*tensors, self.page, self.block, self.heads)

    def queries(self) -> torch.Tensor:
        """[requests, query heads, dim] with rows apart where the setup says so; NaN in padded slots."""
        q = torch.randn(len(self.lengths), self.heads.query * self.heads.dim, generator=self.random)
        q[[not length for length in self.lengths]] = torch.nan
        q = q.to(torch.bfloat16 if self.setup.kv == "fp8" else DTYPES[self.setup.kv])
        if self.setup.strided:
            q = torch.nn.functional.pad(q, (0, 24), value=torch.nan)[:, : q.shape[1]]
        return q.unflatten(1, (self.heads.query, self.heads.dim))

    def run(self, steps: int = 1) -> Comparison:
        for _ in range(steps):
            self.step()
        return self

    def step(self) -> None:
        """One more token for every request; in every layer summaries and a selection, compared."""
        step = self.step_number
        self.step_number += 1
        batch, device_batch = self.batch(step), self.batch(step, self.device)
        batch.check_values(pages=self.pages, slots=len(self.lengths) + 1)
        new = self._newly_finished(batch)
        queries = [self.queries() for _ in range(self.setup.layers)]
        found = self.launch(new, [each.to(self.device) for each in queries], device_batch)
        for layer in range(self.setup.layers):
            self.compare_entries(layer, new)
            self.compare(layer, queries[layer], batch, found[layer])

    def launch(self, new: torch.Tensor, queries: list[torch.Tensor], batch: Batch) -> list[Selection]:
        """The kernels of one step: summaries of all layers, then a selection in each."""
        self.summarise(new, batch)
        return [
            copied(self.flow.select(self.memory, layer, q, self.device_pools[layer], batch))
            for layer, q in enumerate(queries)
        ]

    def _newly_finished(self, batch: Batch) -> torch.Tensor:
        finished: set[int] = set()
        for row in range(batch.requests):
            finished |= set(batch.pool_blocks(row, batch.finished_blocks(row)).tolist())
        new = torch.tensor(sorted(finished - self.summarised), dtype=torch.int64)
        self.summarised |= finished
        return new

    def summarise(self, new: torch.Tensor, batch: Batch) -> None:
        if self.setup.in_step:
            if self.memory.layer_table is None:
                self.flow.bind_layers(self.memory, self.device_pools)
            self.flow.summarise_step(self.memory, self.device_pools[0], batch)
            valid = self.memory.valid.nonzero().flatten().tolist()
            assert not self.flow.program.entries or set(valid) == self.summarised
        else:
            for layer, pool in enumerate(self.device_pools):
                self.flow.summarise(self.memory, layer, pool, new.to(self.device))

    # Comparisons

    def compare_entries(self, layer: int, blocks: torch.Tensor) -> None:
        """Entries of these pool blocks as stored: a storage step, or fp32's error, from the reference."""
        self.fp32.summarise(self.memory32, layer, self.pools[layer], blocks)
        for entry in self.flow.program.entries:
            kind = self.flow.built.options.entry_dtype if entry.storage == "kv" else entry.storage
            held = self.memory32.entries[layer][entry.name].data
            ours = read_entry(self.memory, layer, entry.name, kind, held.shape)[blocks].cpu()
            theirs = held[blocks]
            where = f"entry {entry.name!r} ({kind}) of layer {layer}"
            if kind in ("sign", "bool", "int32"):
                wrong = ours.to(theirs.dtype) != theirs
                if wrong.any():
                    assert not (wrong & ~self._undecided_entry(layer, entry.name, blocks)).any(), where
            else:
                bound = storage_step(theirs, kind) + 2e-6 * size_of(theirs)
                wrong = (
                    ~((ours - theirs).abs() <= bound) & ~(ours == theirs) & ~(ours.isnan() & theirs.isnan())
                )
                assert not wrong.any(), (where, ours[wrong][:4], theirs[wrong][:4])
            for memory in (self.memory32, self.memory64):
                memory.entries[layer][entry.name].data[blocks] = ours.to(theirs.dtype)

    def _undecided_entry(self, layer: int, name: str, blocks: torch.Tensor) -> torch.Tensor:
        """Where a code changes when the tokens change in their last bits."""
        memory = copy.deepcopy(self.memory64)
        held = memory.entries[layer][name].data
        seen = []
        for number in range(6):
            pool = self._nudged_pool(self.pools[layer], torch.Generator().manual_seed(number))
            self.fp64.summarise(memory, layer, pool, blocks)
            seen.append(held[blocks].clone())
        return torch.stack([each != seen[0] for each in seen]).any(0)

    def _nudged_pool(self, pool: KVPool, random: torch.Generator) -> KVPool:
        tensors = {name: nudged(each.float(), random) for name, each in pool.tensors.items()}
        return KVPool(tensors, self.page, pool.scales)

    def compare(self, layer: int, q: torch.Tensor, batch: Batch, found: Selection) -> None:
        """A selection that the kernels made, and the states that they left, with the reference's."""
        listed = listing(found, batch, layer in self.flow.dense_layers)
        check_selection(listed, batch)
        pool, q = self.pools[layer], q.float()
        before = copy.deepcopy(self.memory64)
        scores = self._scores(layer, q, pool, batch)
        expected = self.fp32.select(self.memory32, layer, q, pool, batch)
        self.fp64.select(self.memory64, layer, q, pool, batch)
        for row, length in enumerate(self.lengths):
            assert bool(listed.dense[row]) == bool(expected.dense[row]), f"request {row}: dense"
            assert length or not listed.counts[row].any()
        self.compared += listed.counts.numel()
        if scores is None:
            wrong = differing(listed, expected)
        else:
            wrong = [each for each in differing(listed, expected)
                     if disagreements(one_row(listed, *each), one_row(expected, *each), *(
                         [rows[each[0]][each[1] : each[1] + 1]] for rows in scores), self.program.policy)]  # fmt: skip
        for row, head in wrong:
            ours, theirs = members(listed, row, head), members(expected, row, head)
            assert self._undecided(before, layer, q, pool, batch, row, head), (
                f"layer {layer}, request {row} of {batch.lengths[row]} tokens, KV head {head}: {ours} is selected, "
                f"the reference selects {theirs}"
            )
            self.excused += 1
        self.compare_states(layer, batch)

    def _scores(self, layer: int, q: torch.Tensor, pool: KVPool, batch: Batch) -> tuple[list, list] | None:
        try:
            return (self.fp32.scores(self.memory32, layer, q, pool, batch),
                    self.fp64.scores(self.memory64, layer, q, pool, batch))  # fmt: skip
        except ValueError:
            return None

    def _undecided(self, before, layer, q, pool, batch, row, head) -> bool:
        """Whether the reference selects something else when its inputs change in their last bits."""
        seen = set()
        for number in range(6):
            random = torch.Generator().manual_seed(number)

            memory = copy.deepcopy(before)
            for held in (*memory.entries[layer].values(), *memory.states[layer].values()):
                held.data.copy_(nudged(held.data, random))
            found = self.fp64.select(memory, layer, nudged(q, random), self._nudged_pool(pool, random), batch)
            seen.add(tuple(members(found, row, head)))
        return len(seen) > 1

    def compare_states(self, layer: int, batch: Batch) -> None:
        for state in self.flow.program.states:
            ours, exact, theirs = (
                memory.states[layer][state.name] for memory in (self.memory, self.memory64, self.memory32)
            )
            ours = ours.cpu().reshape(theirs.data.shape).to(theirs.data.dtype)
            where = f"state {state.name!r} of layer {layer}"
            for row, slot in enumerate(batch.slots.tolist()):
                if not self.lengths[row]:
                    continue
                mine, wanted, measured = (each[slot].double() for each in (ours, exact.data, theirs.data))
                error = (measured - wanted).abs().nan_to_num(0.0, 0.0).amax() if wanted.numel() else 0.0
                bound = 4 * error + 2e-6 * max(size_of(wanted), 1.0)
                same = ((mine - wanted).abs() <= bound) | (mine == wanted) | (mine.isnan() & wanted.isnan())
                assert same.all(), (where, row, mine[~same][:4], wanted[~same][:4], bound)
                for memory in (exact, theirs):
                    memory.data[slot] = ours[slot]


def nudged(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Changed in the last bits of fp32, as another order of summation would change it."""
    return x * (1 + NUDGE * torch.randn(x.shape, generator=random)) if x.is_floating_point() else x


def copied(found: Selection) -> Selection:
    """A selection that the next call does not write over."""
    return Selection(found.ids.clone(), found.counts.clone(), found.dense.clone(), found.lists_dense)


def moved(pool: KVPool, device: torch.device) -> KVPool:
    """The pool on a device, strides kept."""

    def move(x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
        return made.copy_(x)

    return KVPool({name: move(each) for name, each in pool.tensors.items()}, pool.page_size, pool.scales)


def stored_weights(program: Program) -> dict[str, torch.Tensor]:
    """Parameters as a kernel reads them: rounded to the dtype that they are declared with."""
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return {
        name: value.to(kinds[dtype]).to(value.dtype)
        if (dtype := program.weight(name).dtype) in kinds
        else value
        for name, value in load_weights(program).items()
    }


def listing(found: Selection, batch: Batch, dense_layer: bool) -> Selection:
    """The selection on the host, with dense rows listed in full where their tables say nothing.

    In a dense layer no table is written at all: padded rows are known by their length.
    """
    ids, counts, dense = found.ids.cpu(), found.counts.cpu(), found.dense.cpu()
    if found.lists_dense:
        return Selection(ids, counts, dense)
    blocks = -(-batch.lengths // batch.block_size)
    width = max(int(blocks.max()), ids.shape[-1])
    ids = torch.nn.functional.pad(ids, (0, width - ids.shape[-1]), value=-1)
    counts = counts.clone()
    whole = dense | (batch.lengths == 0) if dense_layer else dense
    for row in whole.nonzero().flatten().tolist():
        ids[row] = -1
        ids[row, :, : blocks[row]] = torch.arange(int(blocks[row]), dtype=torch.int32)
        counts[row] = blocks[row]
    return Selection(ids, counts, dense)


def members(selection: Selection, row: int, head: int) -> list[int]:
    return selection.ids[row, head, : int(selection.counts[row, head])].tolist()


def differing(ours: Selection, theirs: Selection) -> list[tuple[int, int]]:
    rows = itertools.product(*(range(size) for size in ours.counts.shape))
    return [each for each in rows if members(ours, *each) != members(theirs, *each)]


def one_row(selection: Selection, row: int, head: int) -> Selection:
    return Selection(selection.ids[row : row + 1, head : head + 1], selection.counts[row : row + 1, head : head + 1],
                     selection.dense[row : row + 1])  # fmt: skip
