"""The reference executor: a program on a batch, one (request, KV head) at a time. It is the specification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vortex.dsl.ir import Entry, Program, State
from vortex.dsl.policy import Budget, Layers
from vortex.dsl.view import PER_HEAD, View
from vortex.vtensor.batch import Batch, BatchError, Heads
from vortex.vtensor.evaluate import Evaluation, Run
from vortex.vtensor.layout import Layout, VTensor
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection
from vortex.vtensor.weights import load_weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass
class ReferenceStorage:
    """Entries and states of all layers.

    entries  per layer, name -> paged vTensor [pool blocks, kv heads, axes…] of values already rounded to
             their storage dtype, held as fp32, int64 or bool
    states   per layer, name -> state vTensor [slots, kv heads, (max blocks,) other axes…], fp32 or bool
    """

    heads: Heads
    entries: list[dict[str, VTensor]] = field(default_factory=list)
    states: list[dict[str, VTensor]] = field(default_factory=list)

    def bytes(self) -> int:
        tensors = [each.data for layer in (*self.entries, *self.states) for each in layer.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


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


class ReferenceRunner:
    """Runs a program eagerly in torch.

    shortcut  rows whose budget covers all their blocks are attended densely without selecting; off, what the
              indexer selects decides even there
    dtype     "fp32", or "fp64" to measure errors against
    weights   values of parameters; by default as the program declares them
    """

    def __init__(
        self,
        program: Program,
        *,
        shortcut: bool = True,
        dtype: str = "fp32",
        weights: Mapping[str, Tensor] | None = None,
        view: View = PER_HEAD,
    ) -> None:
        import torch

        if program.policy.reuse_steps != 1 or program.policy.reuse_layers != 1:
            raise BatchError(
                "reuse_steps and reuse_layers other than 1 are not run by the reference executor"
            )
        self.program = program
        self.block_size = program.policy.block_size
        self.shortcut = shortcut
        self.dtype = {"fp32": torch.float32, "fp64": torch.float64}[dtype]
        self.view = view
        self.weights = dict(weights) if weights is not None else load_weights(program)
        self.budget = Budget.parse(program.policy.budget)
        self.dense_layers = Layers.parse(program.policy.dense_layers).numbers(program.shape.layers)
        self.cache = Evaluation(program.cache)
        self.indexer = Evaluation(program.indexer)

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
        """Entries start as garbage (NaN where the dtype has one): reading one before it is written shows."""
        import torch

        self._check(heads)

        def entry(each: Entry) -> VTensor:
            dtype = {"int32": torch.int64, "bool": torch.bool}.get(each.storage, torch.float32)
            shape = (pool_blocks, heads.kv, *(axis.size or 0 for axis in each.axes))
            fill = {torch.int64: -1, torch.bool: True}.get(dtype, float("nan"))
            data = torch.full(shape, fill, dtype=dtype, device=device)
            return VTensor(data, Layout.PAGED, tuple(axis.name for axis in each.axes))

        def state(each: State) -> VTensor:
            ragged = [axis for axis in each.axes if axis.size is None]
            rest = [axis for axis in each.axes if axis.size is not None]
            shape = (slots, heads.kv, *([max_blocks] if ragged else []), *(axis.size or 0 for axis in rest))
            dtype = torch.bool if each.dtype == "bool" else torch.float32
            data = torch.full(shape, each.default, dtype=dtype, device=device)
            return VTensor(data, Layout.STATE, tuple(axis.name for axis in (*ragged, *rest)))

        program = self.program
        return ReferenceStorage(
            heads,
            [{each.name: entry(each) for each in program.entries} for _ in range(layers)],
            [{each.name: state(each) for each in program.states} for _ in range(layers)],
        )

    def _check(self, heads: Heads) -> None:
        shape = self.program.shape
        if (heads.group, heads.dim) != (shape.group, shape.head_dim):
            raise BatchError(
                f"heads: the flow was traced for a group of {shape.group} and head dim {shape.head_dim}, got {heads}"
            )

    def reset_slot(self, storage: ReferenceStorage, slot: int) -> None:
        for layer in storage.states:
            for each in self.program.states:
                layer[each.name].data[slot] = each.default

    def summarise(self, storage: ReferenceStorage, layer: int, pool: KVPool, block_ids: Tensor) -> None:
        """Runs forward_cache on finished pool blocks; `block_ids`: int64 [m]."""
        if not self.program.entries:
            return
        for block in block_ids.tolist():
            for head in range(storage.heads.kv):
                self._summarise_one(storage, layer, pool, block, head)

    def _summarise_one(
        self, storage: ReferenceStorage, layer: int, pool: KVPool, block: int, head: int
    ) -> None:
        size = self.block_size

        def read(name: str) -> Tensor:
            stored = pool.tensors[name][block * size : (block + 1) * size, head]
            return stored.to(self.dtype) * pool.scale(name) if pool.scales else stored.to(self.dtype)

        run = self._run(
            {"input": read, "weight": lambda name: self._weight(name, layer, head)}, 0, layer, pool
        )
        self.cache.evaluate([run])
        for store in self.program.cache.stores:
            value = run.values[store.value]
            stored_as = self.program.entry(store.name).storage
            if stored_as == "kv":
                value = value.to(entry_dtype(pool.tensors["k"].dtype))
            target = storage.entries[layer][store.name].data
            target[block, head] = value.to(target.dtype)

    def _weight(self, name: str, layer: int, head: int) -> Tensor:
        weight = self.program.weight(name)
        value = self.weights[name]
        value = value[layer] if weight.per_layer else value
        return value[head] if weight.per_kv else value

    def _run(self, sources: dict[str, Any], tokens: int, layer: int, pool: KVPool) -> Run:
        counts = Counts.of(tokens, self.program)
        policy = self.program.policy

        def take(k: Any) -> int:
            budget = self.budget if k is None else Budget.parse(k)
            return max(counts.attended(self._evaluate(budget, tokens, layer)) - 1, 0)

        return Run(
            sources,
            blocks=max(counts.blocks - 1, 0),
            sinks=policy.sink_blocks,
            recent=policy.recent_blocks,
            take=take,
            dtype=self.dtype,
            device=pool.tensors["k"].device,
        )

    def _evaluate(self, budget: Budget, tokens: int, layer: int) -> int:
        layers = self.program.shape.layers
        return budget.evaluate(tokens=tokens, block_size=self.block_size, layer=layer, layers=layers)

    def is_dense(self, tokens: int, layer: int) -> bool:
        """Whether every block of a row of this length is attended, whatever is selected."""
        below = self.program.policy.dense_below
        if layer in self.dense_layers or (below != "auto" and tokens < int(below)):
            return True
        return self._evaluate(self.budget, tokens, layer) >= Counts.of(tokens, self.program).blocks

    def select(
        self, storage: ReferenceStorage, layer: int, q: Tensor, pool: KVPool, batch: Batch
    ) -> Selection:
        """The attended blocks of every (request, KV head); q: [requests, query heads, dim]."""
        import torch

        self._check(batch.heads)
        lengths, slots = batch.lengths.tolist(), batch.slots.tolist()
        rows: list[list[Tensor]] = []
        dense = []
        for row, tokens in enumerate(lengths):
            covered = tokens > 0 and self.is_dense(tokens, layer)
            short = covered and (self.shortcut or layer in self.dense_layers)
            dense.append(short)
            rows.append(self._select_row(storage, layer, q[row], pool, batch, row, tokens, slots[row], short))
        width = max((len(ids) for heads in rows for ids in heads), default=0)
        ids = torch.full((batch.requests, batch.heads.kv, width), -1, dtype=torch.int32, device=q.device)
        counts = torch.zeros((batch.requests, batch.heads.kv), dtype=torch.int32, device=q.device)
        for row, heads in enumerate(rows):
            for head, chosen in enumerate(heads):
                ids[row, head, : len(chosen)] = chosen
                counts[row, head] = len(chosen)
        return Selection(ids, counts, torch.tensor(dense, dtype=torch.bool, device=q.device))

    def _select_row(
        self, storage: ReferenceStorage, layer: int, q: Tensor, pool: KVPool, batch: Batch, row: int, tokens: int,
        slot: int, short: bool,
    ) -> list[Tensor]:  # fmt: skip
        """Attended block numbers of one request, a tensor a KV head, the current block last."""
        import torch

        heads = batch.heads
        blocks = -(-tokens // self.block_size)
        everything = torch.arange(blocks, device=q.device)
        if tokens == 0 or (short and not self.program.states):
            return [everything] * heads.kv
        pool_ids = batch.pool_blocks(row, blocks - 1)
        runs = [
            self._run(
                self._sources(storage, layer, q, pool, pool_ids, head, heads, slot), tokens, layer, pool
            )
            for head in range(heads.kv)
        ]
        self.indexer.evaluate(runs, self._combine())
        for head, run in enumerate(runs):
            self._keep_state(storage, layer, run, slot, head)
        if short:
            return [everything] * heads.kv
        result = self.program.indexer.result
        assert result is not None
        return [self._with_reserved(run, run.members(result)) for run in runs]

    def _with_reserved(self, run: Run, chosen: Tensor) -> Tensor:
        import torch

        mask = torch.zeros(run.blocks + 1, dtype=torch.bool, device=chosen.device)
        mask[chosen] = True
        mask[: run.sinks] = True
        mask[max(run.blocks - run.recent, 0) :] = True
        return mask.nonzero().flatten()

    def _combine(self) -> Any:
        import torch

        how = self.program.policy.share_heads
        if not how:
            return None
        together: dict[str, Callable[..., Tensor]] = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}
        return lambda rows: together[str(how)](torch.stack(rows), 0)

    def _sources(
        self, storage: ReferenceStorage, layer: int, q: Tensor, pool: KVPool, pool_ids: Tensor, head: int,
        heads: Heads, slot: int,
    ) -> dict[str, Any]:  # fmt: skip
        """What the leaves of the indexer read for one KV head of one request."""

        def read_input(name: str) -> Tensor:
            declared = self.view.find(name)
            if declared is not None and not declared.cached:
                return q[head * heads.group : (head + 1) * heads.group]
            stored = pool.blocks(name, pool_ids, self.block_size, head).to(self.dtype)
            return stored * pool.scale(name) if pool.scales else stored

        def read_state(name: str) -> Tensor:
            held = storage.states[layer][name]
            value = held.data[slot, head]
            if "block" not in held.axes:
                return value
            order = [axis.name for axis in self.program.state(name).axes]
            return value[: len(pool_ids)].movedim(0, order.index("block")).clone()

        return {
            "input": read_input,
            "entry": lambda name: storage.entries[layer][name].data[pool_ids, head],
            "state": read_state,
            "weight": lambda name: self._weight(name, layer, head),
        }

    def _keep_state(self, storage: ReferenceStorage, layer: int, run: Run, slot: int, head: int) -> None:
        for store in self.program.indexer.stores:
            held = storage.states[layer][store.name]
            value = run.values[store.value]
            if self.indexer.types[store.value].members is not None:
                from vortex.vtensor.evaluate import indicator

                value = indicator(run, self.indexer.types[store.value], value)
            value = value.to(held.data.dtype)
            if "block" in held.axes:
                order = [axis.name for axis in self.program.state(store.name).axes]
                held.data[slot, head, : run.blocks] = value.movedim(order.index("block"), 0)
            else:
                held.data[slot, head] = value


def entry_dtype(kv: torch.dtype) -> torch.dtype:
    """How an entry without a Cast is stored: in the KV dtype, or bf16 where that has 8 bits."""
    import torch

    return torch.bfloat16 if kv.itemsize == 1 else kv
