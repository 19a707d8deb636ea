"""Counters of a decode step, kept on the device: what was attended sparsely, densely, and how much was read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vortex.attention.source import load, power_of_two
from vortex.vtensor.batch import Batch, Heads


@dataclass(frozen=True)
class LayerReads:
    """Sums over the steps since the last reset, of one layer.

    sparse, dense  rows (one a request and step) attended over a selection, and over all their tokens
    kv_bytes       K and V that attention read
    """

    sparse: int
    dense: int
    kv_bytes: int


class Tally:
    """One small kernel a step adds up all layers.

    counts  int32 [layers, requests, KV heads]: attended blocks, written by the selection of each layer
    dense   int8 [layers or more, requests]: rows attended in full; it counts where `skipping` [layers] is 1
    whole   per layer, whether every row is attended in full; leaders: per layer, whose counts it attends
    totals  int64 [layers, 3] to add to, where several steps share them
    """

    def __init__(self, requests: int, heads: Heads, block_size: int, whole: list[bool], leaders: list[int],
                 dense: Tensor, skipping: Tensor, kv_dtype: torch.dtype, *, kernel: bool,
                 totals: Tensor | None = None) -> None:  # fmt: skip
        device, layers = dense.device, len(whole)
        self.heads, self.block_size, self.kernel = heads, block_size, kernel
        self.token_bytes = 2 * heads.dim * kv_dtype.itemsize
        self.counts = torch.zeros(layers, requests, heads.kv, dtype=torch.int32, device=device)
        self.totals = torch.zeros(layers, 3, dtype=torch.int64, device=device) if totals is None else totals
        self.dense, self.skipping = dense, skipping
        self.whole = torch.tensor(whole, dtype=torch.int8, device=device)
        self.leaders = torch.tensor(leaders, dtype=torch.int32, device=device)

    def add(self, batch: Batch) -> None:
        """One step, after its last layer. Capturable."""
        if not batch.requests:
            return
        if not self.kernel:
            self.totals += self._step(batch)
            return
        load("tally.py.jinja").tally[(len(self.totals),)](
            self.totals, batch.lengths, self.counts, self.dense, self.skipping, self.whole, self.leaders,
            batch.requests, HEADS=self.heads.kv, HEAD_LANES=power_of_two(self.heads.kv),
            REQUEST_LANES=power_of_two(batch.requests), BLOCK_SIZE=self.block_size, num_warps=4,
        )  # fmt: skip

    def _step(self, batch: Batch) -> Tensor:
        """The same in torch, int64 [layers, 3]: the specification of the kernel."""
        layers = len(self.totals)
        lengths = batch.lengths.to(torch.int64)
        live = lengths > 0
        flags = self.dense[:layers].bool() & self.skipping[:layers, None].bool()
        every = flags | self.whole[:, None].bool()
        counts = self.counts[self.leaders.long()].to(torch.int64)
        newest = (lengths - 1) % self.block_size + 1
        listed = (counts - 1).clamp(min=0) * self.block_size + (counts > 0) * newest[:, None]
        tokens = torch.where(every[..., None], lengths[:, None], listed) * live[:, None]
        columns = [(live & ~every).sum(1), (live & every).sum(1), tokens.sum((1, 2))]
        return torch.stack(columns, 1)

    def read(self) -> list[LayerReads]:
        """Synchronises with the device."""
        rows = self.totals.tolist()
        return [LayerReads(sparse, dense, tokens * self.token_bytes) for sparse, dense, tokens in rows]

    def reset(self) -> None:
        self.totals.zero_()
