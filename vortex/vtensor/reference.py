"""The reference executor: a program on a batch, one request at a time. It is the specification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vortex.dsl.ir import Program
from vortex.dsl.policy import Budget, Layers
from vortex.dsl.view import PER_HEAD, View
from vortex.vtensor import reuse
from vortex.vtensor.batch import Batch, BatchError, Heads
from vortex.vtensor.evaluate import Combine, Evaluation, Run
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection, listed
from vortex.vtensor.storage import ReferenceStorage, allocate, entry_dtype
from vortex.vtensor.weights import load_weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CACHED_LENGTHS = 1 << 16
"""(length, layer) pairs whose budgets are remembered: exact rationals are slow next to a small layer."""

SUMMARISED_AT_ONCE = 256
"""Blocks of one evaluation of forward_cache; bounds its memory."""


@dataclass(frozen=True)
class Counts:
    """Sizes of one row: L tokens, its finished blocks, and what of them is attended.

    blocks    ceil(L / P), the current block included
    reserved  sinks, recent and current blocks without duplicates
    """

    tokens: int
    blocks: int
    reserved: int

    @staticmethod
    def of(tokens: int, program: Program) -> Counts:
        policy = program.policy
        blocks = -(-tokens // policy.block_size)
        finished = max(blocks - 1, 0)
        reserved = min(finished, policy.sink_blocks + policy.recent_blocks) + (blocks > 0)
        return Counts(tokens, blocks, reserved)

    def attended(self, budget: int) -> int:
        """DESIGN: min(blocks, max(budget, reserved))."""
        return min(self.blocks, max(budget, self.reserved))


@dataclass(frozen=True)
class Row:
    """One request of a step: its queries [query heads, dim] and the pool ids of its n finished blocks."""

    tokens: int
    slot: int
    q: Tensor
    pool_ids: Tensor

    @property
    def finished(self) -> int:
        return len(self.pool_ids)

    @property
    def blocks(self) -> int:
        return self.finished + (self.tokens > 0)


class ReferenceRunner:
    """Runs a program eagerly in torch.

    shortcut  rows whose budget covers all their blocks are attended densely without selecting; off, what the
              indexer selects decides even there (rows below `dense_below` included; `dense_layers` stay dense)
    dtype     "fp32", or "fp64" to measure errors against: entries and states are rounded as in fp32
    weights   values of parameters; by default as the program declares them
    entries   how an entry without a Cast is rounded; None: as K and V are, to bf16 where those have 8 bits

    `dense_below`: tokens below which rows are dense, as the flow says; 0 for "auto" until it is set.
    Raises BatchError for a flow with state that reuses selections.
    """

    def __init__(
        self,
        program: Program,
        *,
        shortcut: bool = True,
        dtype: str = "fp32",
        weights: Mapping[str, Tensor] | None = None,
        view: View = PER_HEAD,
        entries: torch.dtype | None = None,
    ) -> None:
        import torch

        reuse.check_reuse(program)
        self.entries = entries
        self.program = program
        self.block_size = program.policy.block_size
        self.shortcut = shortcut
        self.dtype = {"fp32": torch.float32, "fp64": torch.float64}[dtype]
        self.view = view
        self.weights = dict(weights) if weights is not None else load_weights(program)
        self.dense_layers = Layers.parse(program.policy.dense_layers).numbers(program.shape.layers)
        below = program.policy.dense_below
        self.dense_below = 0 if below == "auto" else int(below)
        per_kv = [weight.name for weight in program.weights if weight.per_kv]
        # Summaries must not depend on which blocks are written together, and the rounding of a matrix product
        # depends on its number of rows: so products are computed a block at a time.
        self.cache = Evaluation(program.cache, varying=["Input"], one_by_one=["GeMM"])
        self.indexer = Evaluation(
            program.indexer,
            varying=["Input", "Entry", "State"],
            weights_per_lane=per_kv,
            combine=_combination(program.policy.share_heads),
        )
        self._budget_of = lru_cache(CACHED_LENGTHS)(self._evaluate_budget)

    def allocate(
        self,
        *,
        layers: int,
        pool_blocks: int,
        slots: int,
        max_blocks: int,
        heads: Heads,
        device: torch.device,
    ) -> ReferenceStorage:
        """Memory for all layers; entries start as garbage (NaN where the dtype has one)."""
        self._check(heads)
        return allocate(self.program, layers, pool_blocks, slots, max_blocks, heads, device)

    def _check(self, heads: Heads) -> None:
        shape = self.program.shape
        if (heads.group, heads.dim) != (shape.group, shape.head_dim):
            raise BatchError(
                f"heads: the flow was traced for a group of {shape.group} and head dim {shape.head_dim}, got {heads}"
            )

    def reset_slot(self, storage: ReferenceStorage, slot: int) -> None:
        """A new request starts here: states hold their defaults, and no selection is kept."""
        for layer in storage.states:
            for each in self.program.states:
                layer[each.name].data[slot] = each.default
        if storage.kept is not None:
            storage.kept.reset(slot)

    def reset_slots(self, storage: ReferenceStorage, slots: Tensor) -> None:
        """`reset_slot` of each of int64 [m]."""
        for slot in slots.tolist():
            self.reset_slot(storage, slot)

    def summarise(self, storage: ReferenceStorage, layer: int, pool: KVPool, block_ids: Tensor) -> None:
        """Runs forward_cache on finished pool blocks; `block_ids`: int64 [m], without duplicates."""
        if not self.program.entries:
            return
        for some in block_ids.split(SUMMARISED_AT_ONCE):
            if len(some):
                for head in range(storage.heads.kv):
                    self._summarise_head(storage, layer, pool, some, head)

    def _summarise_head(
        self, storage: ReferenceStorage, layer: int, pool: KVPool, block_ids: Tensor, head: int
    ) -> None:
        sources = {
            "input": lambda name: self._scaled(
                pool, name, pool.blocks(name, block_ids, self.block_size, head)
            ),
            "weight": lambda name: self._weight(name, layer, pool.device, head),
        }
        run = self._run(sources, len(block_ids), 0, layer, pool.device)
        self.cache.evaluate(run)
        for store in self.program.cache.stores:
            value = self.cache.tensor(run, store.value)
            if self.program.entry(store.name).storage == "kv":
                value = value.to(self.entries or entry_dtype(pool.dtype))
            target = storage.entries[layer][store.name].data
            target[block_ids, head] = value.to(target.dtype)

    def _scaled(self, pool: KVPool, name: str, stored: Tensor) -> Tensor:
        scale = pool.scale(name)
        value = stored.to(self.dtype)
        return value if scale == 1.0 else value * scale

    def _weight(self, name: str, layer: int, device: torch.device, head: int | None = None) -> Tensor:
        """A parameter at one layer; of one KV head, or with the KV heads in front."""
        weight = self.program.weight(name)
        value = self.weights[name].to(device)
        value = value[layer] if weight.per_layer else value
        return value[head] if weight.per_kv and head is not None else value

    def _run(self, sources: dict[str, Any], lanes: int, tokens: int, layer: int, device: torch.device) -> Run:
        counts = Counts.of(tokens, self.program)
        policy = self.program.policy

        def take(k: int | str | None) -> int:
            return max(counts.attended(self._budget_of(k, tokens, layer)) - 1, 0)

        return Run(
            sources,
            lanes=lanes,
            blocks=max(counts.blocks - 1, 0),
            sinks=policy.sink_blocks,
            recent=policy.recent_blocks,
            take=take,
            dtype=self.dtype,
            device=device,
        )

    def _evaluate_budget(self, k: int | str | None, tokens: int, layer: int) -> int:
        """The number that `k` means for a row, the flow's budget where it is None."""
        budget = Budget.parse(self.program.policy.budget if k is None else k)
        layers = self.program.shape.layers
        return budget.evaluate(tokens=tokens, block_size=self.block_size, layer=layer, layers=layers)

    def is_dense(self, tokens: int, layer: int) -> bool:
        """Whether every block of a row of this length is attended, whatever is selected."""
        if layer in self.dense_layers or tokens < self.dense_below:
            return True
        return self._budget_of(None, tokens, layer) >= Counts.of(tokens, self.program).blocks

    def skips(self, tokens: int, layer: int) -> bool:
        """Whether the row attends all blocks and its selection does not matter; never for a padded slot."""
        return tokens > 0 and self.is_dense(tokens, layer) and (self.shortcut or layer in self.dense_layers)

    def select(
        self, storage: ReferenceStorage, layer: int, q: Tensor, pool: KVPool, batch: Batch
    ) -> Selection:
        """The attended blocks of every (request, KV head); q: [requests, query heads, dim]."""
        import torch

        rows = self._rows(storage, q, batch)
        most = max((row.blocks for row in rows), default=0)
        attended = torch.zeros((len(rows), batch.heads.kv, most), dtype=torch.bool, device=q.device)
        dense = torch.zeros(len(rows), dtype=torch.bool, device=q.device)
        for number, row in enumerate(rows):
            if row.tokens:
                chosen = self._select_row(storage, layer, pool, row, batch.heads)
                attended[number, :, : row.blocks] = chosen
                dense[number] = chosen is True
        return listed(attended, dense)

    def scores(
        self, storage: ReferenceStorage, layer: int, q: Tensor, pool: KVPool, batch: Batch
    ) -> list[Tensor]:
        """What `select` ranks the blocks by, per request [kv heads, n]; no state is changed.

        Raises ValueError for a flow whose result is not a topK, topP or Threshold.
        """
        found = []
        for row in self._rows(storage, q, batch):
            run = self._run(
                self._sources(storage, layer, pool, row, batch.heads),
                batch.heads.kv,
                row.tokens,
                layer,
                q.device,
            )
            self.indexer.evaluate(run)
            found.append(self.indexer.scores(run))
        return found

    def _rows(self, storage: ReferenceStorage, q: Tensor, batch: Batch) -> list[Row]:
        self._check(batch.heads)
        if batch.block_size != self.block_size:
            raise BatchError(
                f"block_size: the flow was traced for {self.block_size}, the batch has {batch.block_size}"
            )
        if tuple(q.shape) != (batch.requests, batch.heads.query, batch.heads.dim):
            raise BatchError(
                f"q: [requests, query heads, dim] is expected, got {tuple(q.shape)} for {batch.requests} "
                f"requests and {batch.heads}"
            )
        rows = []
        lengths, slots = batch.lengths.tolist(), batch.slots.tolist()
        for number, (tokens, slot) in enumerate(zip(lengths, slots, strict=True)):
            finished = max(tokens - 1, 0) // self.block_size
            if finished >= storage.max_blocks and tokens:
                raise BatchError(
                    f"lengths: request {number} of {tokens} tokens has {finished + 1} blocks, "
                    f"the storage was allocated for {storage.max_blocks}"
                )
            rows.append(Row(tokens, slot, q[number], batch.pool_blocks(number, finished)))
        return rows

    def _select_row(
        self, storage: ReferenceStorage, layer: int, pool: KVPool, row: Row, heads: Heads
    ) -> Tensor | bool:
        """Attended blocks of one request, bool [kv heads, blocks]; True where it is all of them."""
        skips = self.skips(row.tokens, layer)
        if storage.kept is not None:
            return self._reused(storage, storage.kept, layer, pool, row, heads)
        if skips and not self.program.states:
            return True
        chosen = self._indexed(storage, layer, pool, row, heads)
        return True if skips else chosen

    def _reused(
        self, storage: ReferenceStorage, kept: reuse.Kept, layer: int, pool: KVPool, row: Row, heads: Heads
    ) -> Tensor | bool:
        """The row's selection as reuse.py says."""
        policy = self.program.policy
        leader = reuse.leader(policy, layer)
        if layer == leader:
            group = reuse.followers(policy, layer, self.program.shape.layers)
            if all(self.skips(row.tokens, each) for each in group):
                kept.drop(row.slot, layer)
                return True
            if reuse.refreshes(policy, row.tokens) or not kept.holds(row.slot, layer):
                kept.put(row.slot, layer, self._indexed(storage, layer, pool, row, heads))
        if self.skips(row.tokens, layer):
            return True
        if not kept.holds(row.slot, leader):
            raise BatchError(
                f"layer {layer} reuses what layer {leader} selects, which selected nothing in slot {row.slot}: "
                "call select for every layer in order"
            )
        return self._reserve(kept.get(row.slot, leader, row.blocks))

    def _indexed(self, storage: ReferenceStorage, layer: int, pool: KVPool, row: Row, heads: Heads) -> Tensor:
        """Runs the indexer: what each KV head attends, bool [kv heads, blocks]; states hold what it stored."""
        import torch

        run = self._run(
            self._sources(storage, layer, pool, row, heads), heads.kv, row.tokens, layer, row.q.device
        )
        self.indexer.evaluate(run)
        self._keep_state(storage, layer, run, row.slot)
        result = self.program.indexer.result
        assert result is not None
        return self._reserve(torch.nn.functional.pad(self.indexer.tensor(run, result), (0, 1)))

    def _reserve(self, chosen: Tensor) -> Tensor:
        """A set of blocks joined with the sinks, the recent blocks and the current one, the last."""
        policy = self.program.policy
        chosen[:, : policy.sink_blocks] = True
        chosen[:, max(chosen.shape[1] - 1 - policy.recent_blocks, 0) :] = True
        return chosen

    def _sources(
        self, storage: ReferenceStorage, layer: int, pool: KVPool, row: Row, heads: Heads
    ) -> dict[str, Any]:
        """What the leaves of the indexer read for one request, the KV heads in front."""

        def read_input(name: str) -> Tensor:
            declared = self.view.find(name)
            if declared is not None and not declared.cached:
                return row.q.unflatten(0, (heads.kv, heads.group))
            stored = pool.blocks(name, row.pool_ids, self.block_size)
            return self._scaled(pool, name, stored.movedim(2, 0))

        def read_state(name: str) -> Tensor:
            held = storage.states[layer][name]
            value = held.request(row.slot)
            if "block" in held.axes:
                order = [axis.name for axis in self.program.state(name).axes]
                value = value[:, : row.finished].movedim(1, 1 + order.index("block"))
            return value.clone()  # the states are written before every value made of them is read

        return {
            "input": read_input,
            "entry": lambda name: storage.entries[layer][name].request(0, row.pool_ids),
            "state": read_state,
            "weight": lambda name: self._weight(name, layer, pool.device),
        }

    def _keep_state(self, storage: ReferenceStorage, layer: int, run: Run, slot: int) -> None:
        for store in self.program.indexer.stores:
            held = storage.states[layer][store.name]
            value = self.indexer.tensor(run, store.value)
            if "block" in held.axes:
                order = [axis.name for axis in self.program.state(store.name).axes]
                held.data[slot][:, : run.blocks] = value.movedim(1 + order.index("block"), 1).to(
                    held.data.dtype
                )
            else:
                held.data[slot] = value.to(held.data.dtype)


def _combination(share_heads: bool | str) -> Combine | None:
    """How the scores of the KV heads, [heads, blocks], become one row."""
    if not share_heads:
        return None
    if share_heads == "max":
        return lambda rows: rows.amax(0)
    return (lambda rows: rows.sum(0)) if share_heads == "sum" else (lambda rows: rows.mean(0))
