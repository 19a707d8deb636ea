"""Attention in plain torch: the specification of every provider, and what decodes on a CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vortex.attention.provider import Features, StepShape, check_call, require
from vortex.vtensor.batch import Batch
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection


@dataclass(frozen=True)
class ReferenceProvider:
    """exact: fp64 arithmetic instead of fp32; the result is rounded to the dtype of q all the same."""

    exact: bool = False
    name: str = "reference"
    features: frozenset[str] = frozenset({"window", "soft_cap", "sinks"})

    def refusal(self, shape: StepShape, features: Features) -> str | None:
        return None

    def plan(self, shape: StepShape, features: Features, layer: int | None = None) -> PlannedReference:
        require(self, shape, features, layer)
        return PlannedReference(shape, features, torch.float64 if self.exact else torch.float32)


@dataclass(frozen=True)
class PlannedReference:
    shape: StepShape
    features: Features
    compute: torch.dtype

    @property
    def reason(self) -> str:
        return f"plain torch in {self.compute}"

    def update(self, counts: Sequence[int]) -> None:
        pass

    def run(self, q: Tensor, pool: KVPool, selection: Selection, batch: Batch, scale: float,
            out: Tensor | None = None, lse: Tensor | None = None,
            sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
        check_call(self.shape, self.features, q, pool, selection, batch, sinks)
        out = torch.empty_like(q) if out is None else out
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if lse is None else lse
        result, log_sum = attend(q, pool, selection, batch, scale, self.features, sinks, self.compute)
        out.copy_(result)
        lse.copy_(log_sum)
        return out, lse


def attend(q: Tensor, pool: KVPool, selection: Selection, batch: Batch, scale: float,
           features: Features | None = None, sinks: Tensor | None = None,
           compute: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`Planned.run` without a plan: (out, lse), both in `compute`. Synchronises with the device.

    (request, KV head) pairs that attend equally many blocks are computed together.
    """
    features = features or Features()
    heads = batch.heads
    grouped = (batch.requests * heads.kv, heads.group)
    queries = q.reshape(*grouped, heads.dim)
    logits_of_sinks = None if sinks is None else sinks.to(compute).reshape(heads.kv, heads.group)

    by_count = rows_by_count(selection, batch)
    if len(by_count) == 1 and 0 not in by_count:
        count, rows = next(iter(by_count.items()))
        out, lse = _attend_rows(queries, pool, selection, batch, scale, features, logits_of_sinks, compute,
                                torch.tensor(rows, device=q.device), count)  # fmt: skip
        return out.reshape(q.shape), lse.reshape(q.shape[:2])

    out = torch.zeros(queries.shape, dtype=compute, device=q.device)
    lse = torch.full(grouped, -torch.inf, dtype=compute, device=q.device)
    if logits_of_sinks is not None:
        lse.copy_(logits_of_sinks.repeat(batch.requests, 1))
    for count, rows in by_count.items():
        if count:
            at = torch.tensor(rows, device=q.device)
            out[at], lse[at] = _attend_rows(queries[at], pool, selection, batch, scale, features,
                                            logits_of_sinks, compute, at, count)  # fmt: skip
    return out.reshape(q.shape), lse.reshape(q.shape[:2])


def rows_by_count(selection: Selection, batch: Batch) -> dict[int, list[int]]:
    """Number of listed blocks -> the rows (request * KV heads + KV head) that attend so many."""
    lengths, dense = batch.lengths.tolist(), selection.dense.tolist()
    rows: dict[int, list[int]] = defaultdict(list)
    for request, counts in enumerate(selection.counts.tolist()):
        for head, count in enumerate(counts):
            if lengths[request] == 0:
                count = 0
            elif dense[request] and not selection.lists_dense:
                count = -(-lengths[request] // batch.block_size)
            rows[count].append(request * batch.heads.kv + head)
    return rows


def _positions(selection: Selection, batch: Batch, rows: Tensor, count: int) -> Tensor:
    """Positions of the tokens that the rows attend, [rows, count * block_size]; below 0: nothing."""
    request, head = rows // batch.heads.kv, rows % batch.heads.kv
    ids = selection.ids[request, head, :count].to(torch.int64)
    if not selection.lists_dense:
        every = torch.arange(count, device=rows.device)
        padded = torch.nn.functional.pad(ids, (0, count - ids.shape[1]), value=-1)
        ids = torch.where(selection.dense[request, None], every, padded)
    within = torch.arange(batch.block_size, device=rows.device)
    return (ids[:, :, None] * batch.block_size + within).flatten(1)  # of -1: below 0


def _attend_rows(q: Tensor, pool: KVPool, selection: Selection, batch: Batch, scale: float,
                 features: Features, sinks: Tensor | None, compute: torch.dtype, rows: Tensor,
                 count: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rows [n] that each list `count` blocks; q [n, group, dim] -> [n, group, dim], [n, group]."""
    request, head = rows // batch.heads.kv, rows % batch.heads.kv
    newest = batch.lengths[request, None].to(torch.int64) - 1
    positions = _positions(selection, batch, rows, count)
    hidden = (positions < 0) | (positions > newest)
    if features.window is not None:
        hidden |= positions <= newest - features.window

    # What is not attended may be memory that was never written (NaN): it reads the newest token instead.
    positions = torch.where(hidden, newest, positions)
    slots = batch.page_table[request[:, None], positions // batch.page_size].to(torch.int64)
    slots = slots * batch.page_size + positions % batch.page_size
    k = _gather(pool.tensors["k"], slots, head).to(compute)
    v = _gather(pool.tensors["v"], slots, head).to(compute)

    logits = torch.bmm(q.to(compute) * (scale * pool.scale("k")), k.transpose(1, 2))
    if features.soft_cap:
        logits = features.soft_cap * torch.tanh(logits / features.soft_cap)
    logits.masked_fill_(hidden[:, None], -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks[head, :, None]], dim=2)
    # -inf - -inf is NaN: a row without a valid key has a finite maximum, weighs nothing and sums to 0.
    peak = logits.amax(dim=2, keepdim=True).clamp_(min=torch.finfo(compute).min)
    weights = logits.sub_(peak).exp_()
    total = weights.sum(dim=2, keepdim=True)
    out = torch.bmm(weights[..., : v.shape[1]], v)
    out *= pool.scale("v") / total.masked_fill(total == 0, 1.0)
    return out, (peak + total.log()).squeeze(2)


def _gather(tensor: Tensor, slots: Tensor, head: Tensor) -> Tensor:
    """[slots, heads, dim], slots [n, tokens], head [n] -> [n, tokens, dim]."""
    if not tensor.is_contiguous():
        return tensor[slots, head[:, None]]
    rows = slots * tensor.shape[1] + head[:, None]
    return tensor.view(-1, tensor.shape[2]).index_select(0, rows.view(-1)).view(*rows.shape, -1)
