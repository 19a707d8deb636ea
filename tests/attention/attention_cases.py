"""Batches with hostile memory, and attention by the book to judge them by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vortex.attention.provider import Features, Provider, StepShape
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection


@dataclass
class Case:
    """One decode step of one layer. Pool slots that hold no token are NaN; so are `out` and `lse`."""

    batch: Batch
    pool: KVPool
    selection: Selection
    q: Tensor
    features: Features = field(default_factory=Features)
    sinks: Tensor | None = None
    scale: float = 0.2

    @property
    def shape(self) -> StepShape:
        batch, ids = self.batch, self.selection.ids
        return StepShape(
            batch.requests, batch.heads, batch.block_size, batch.page_size, ids.shape[2],
            batch.page_table.shape[1] * batch.blocks_per_page, self.q.dtype, self.pool.tensors["k"].dtype,
            ids.device, lists_dense=self.selection.lists_dense,
        )  # fmt: skip

    def run(self, provider: Provider) -> tuple[Tensor, Tensor]:
        planned = provider.plan(self.shape, self.features)
        planned.update(self.selection.counts[:, 0].tolist())
        out = torch.full(self.q.shape, torch.nan, dtype=self.q.dtype, device=self.q.device)
        lse = torch.full(self.q.shape[:2], torch.nan, device=self.q.device)
        return planned.run(self.q, self.pool, self.selection, self.batch, self.scale, out, lse, self.sinks)


def make(lengths: Sequence[int], query: int = 6, kv: int = 2, dim: int = 64, block: int = 16,
         page: int | None = None, budget: int = 3, dtype: torch.dtype = torch.float32,
         kv_dtype: torch.dtype | None = None,
         device: str = "cpu", layout: str = "slots", scales: tuple[float, float] = (1.0, 1.0), seed: int = 0,
         dense: Sequence[bool] | None = None, lists_dense: bool = True, first_page: int = 0,
         features: Features | None = None) -> Case:  # fmt: skip
    """A case with `budget` random blocks a row, the current one last. `layout` of the pool: "slots" [slots,
    heads, dim], "heads" (head-major memory) or "halves" (K and V interleaved in one allocation)."""
    page = page or block
    heads, kv_dtype = Heads(query, kv, dim), kv_dtype or dtype
    features = features or Features()
    generator = torch.Generator().manual_seed(seed)
    requests, most = len(lengths), max(-(-max(lengths, default=1) // page), 1) + 1
    order = torch.randperm(requests * most, generator=generator).to(torch.int32) + first_page
    table = order.view(requests, most).to(device)
    batch = Batch(torch.tensor(lengths, dtype=torch.int32, device=device), table,
                  torch.arange(requests, dtype=torch.int32, device=device), page, block, heads)  # fmt: skip
    slots = (first_page + requests * most) * page
    tensors = pool_tensors(layout, slots, heads, kv_dtype, device)
    for row, length in enumerate(lengths):
        position = torch.arange(length)
        slot = table[row].cpu()[position // page].long() * page + position % page
        for tensor in tensors.values():
            values = torch.randn(length, kv, dim, generator=generator, dtype=torch.float32)
            tensor[slot.to(device)] = values.to(kv_dtype).to(device)
    ids = torch.full((requests, kv, budget), -1, dtype=torch.int32)
    counts = torch.zeros(requests, kv, dtype=torch.int32)
    for row, length in enumerate(lengths):
        blocks = -(-length // block)
        count = min(blocks, budget)
        for head in range(kv if count else 0):
            others = torch.randperm(blocks - 1, generator=generator)[: count - 1].sort().values
            ids[row, head, :count] = torch.cat([others, torch.tensor([blocks - 1])]).to(torch.int32)
            counts[row, head] = count
    flags = torch.tensor(dense or [False] * requests, dtype=torch.bool, device=device)
    selection = Selection(ids.to(device), counts.to(device), flags, lists_dense)
    q = torch.randn(requests, query, dim, generator=generator).to(dtype).to(device)
    sinks = torch.randn(query, generator=generator).to(device) if features.sinks else None
    pool = KVPool(tensors, page, {"k": scales[0], "v": scales[1]})
    return Case(batch, pool, selection, q, features, sinks)


def pool_tensors(layout: str, slots: int, heads: Heads, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Empty memory: NaN, which 8-bit floats have as well."""
    if layout == "halves":
        both = torch.full((slots, 2, heads.kv, heads.dim), torch.nan, dtype=dtype, device=device)
        return {"k": both[:, 0], "v": both[:, 1]}
    shape = (slots, heads.kv, heads.dim) if layout == "slots" else (heads.kv, slots, heads.dim)
    pair = [torch.full(shape, torch.nan, dtype=dtype, device=device) for _ in range(2)]
    if layout == "heads":
        pair = [tensor.transpose(0, 1) for tensor in pair]
    return {"k": pair[0], "v": pair[1]}


def attended(case: Case, row: int, head: int) -> Tensor:
    """Positions of the attended tokens, one block after the other, as a person would list them."""
    batch, selection, length = case.batch, case.selection, int(case.batch.lengths[row])
    blocks = selection.ids[row, head, : int(selection.counts[row, head])].tolist()
    if bool(selection.dense[row]) and not selection.lists_dense:
        blocks = list(range(-(-length // batch.block_size)))
    oldest = 0 if case.features.window is None else length - case.features.window
    positions = [
        position
        for number in blocks
        for position in range(number * batch.block_size, (number + 1) * batch.block_size)
        if number >= 0 and oldest <= position < length
    ]
    return torch.tensor(positions, dtype=torch.int64, device=case.q.device)


def by_the_book(case: Case, compute: torch.dtype) -> tuple[Tensor, Tensor]:
    """softmax(q k) v for each (request, KV head) on its own, every step in `compute`; (out, lse)."""
    batch, heads = case.batch, case.batch.heads
    out = torch.zeros(case.q.shape, dtype=compute, device=case.q.device)
    lse = torch.full(case.q.shape[:2], -torch.inf, dtype=compute, device=case.q.device)
    for row in range(batch.requests):
        for head in range(heads.kv):
            members = slice(head * heads.group, (head + 1) * heads.group)
            position = attended(case, row, head)
            slot = batch.page_table[row, position // batch.page_size].long() * batch.page_size
            slot = slot + position % batch.page_size
            k = case.pool.tensors["k"][slot, head].to(compute) * case.pool.scale("k")
            v = case.pool.tensors["v"][slot, head].to(compute) * case.pool.scale("v")
            logits = case.q[row, members].to(compute) @ k.T * case.scale
            if case.features.soft_cap:
                logits = case.features.soft_cap * torch.tanh(logits / case.features.soft_cap)
            if case.sinks is not None:
                sink = case.sinks[members, None].to(compute)
                v = torch.cat([v, torch.zeros_like(v[:1])] if len(v) else [torch.zeros(1, heads.dim).to(v)])
                logits = torch.cat([logits, sink], dim=1)
            if logits.shape[1]:
                out[row, members] = torch.softmax(logits, dim=1) @ v
                lse[row, members] = torch.logsumexp(logits, dim=1)
    return out, lse


def check(case: Case, result: tuple[Tensor, Tensor]) -> None:
    """The error against fp64 is at most twice that of plain torch in the dtype of q, or a few fp32 roundings
    and the one of the result."""
    out, lse = result
    assert out.dtype == case.q.dtype and lse.dtype == torch.float32
    exact, exact_lse = by_the_book(case, torch.float64)
    plain, plain_lse = by_the_book(case, case.q.dtype)
    assert not out.isnan().any() and not lse.isnan().any()
    for mine, same, truth in ((out, plain, exact), (lse, plain_lse, exact_lse)):
        nothing = torch.isneginf(truth)
        assert torch.equal(torch.isneginf(mine), nothing)
        found, same, truth = (x.double().masked_fill(nothing, 0.0) for x in (mine, same, truth))
        # A GPU's exponential, ex2.approx, is off by up to 2**-22 of its own (PTX ISA).
        own = 4 if mine.is_cuda else 0
        rounding = (torch.finfo(mine.dtype).eps / 2 + (8 + own) * 2**-24) * float(truth.abs().max())
        allowed = max(2 * float((same - truth).abs().max()), rounding)
        assert float((found - truth).abs().max()) <= allowed
    for row, length in enumerate(case.batch.lengths.tolist()):
        if length == 0:
            assert not out[row].any()


def with_selection(case: Case, **changes: object) -> Case:
    return replace(case, selection=replace(case.selection, **changes))
