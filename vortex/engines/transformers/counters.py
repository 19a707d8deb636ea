"""What decoding did: how often it was sparse, and how many bytes of the cache it read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vortex.vtensor.batch import Batch


@dataclass(frozen=True)
class Counters:
    """Sums over decode steps, layers and requests.

    steps              decode steps of the batch
    selections         calls of `FlowRunner.select` (one a layer and step)
    sparse_calls, dense_calls   (layer, request) pairs attended over a selection, and over all tokens
    kv_bytes           K and V that attention read
    dense_kv_bytes     K and V that dense attention reads in the same steps
    entry_bytes        entries of all finished blocks that the indexer read, K and V that it reads itself not counted;
                       None where that is not known
    """

    steps: int = 0
    selections: int = 0
    sparse_calls: int = 0
    dense_calls: int = 0
    kv_bytes: int = 0
    dense_kv_bytes: int = 0
    entry_bytes: int | None = None

    @property
    def kv_share(self) -> float:
        """Part of the KV bytes that decoding read, 1.0 for dense; entries are not counted."""
        return self.kv_bytes / self.dense_kv_bytes if self.dense_kv_bytes else 1.0


class Meter:
    """Collects counters on the device, so that a step needs no synchronisation.

    token_bytes  K and V of one token of one KV head of one layer
    entry_bytes  entries of one block of one KV head of one layer, None if unknown
    """

    def __init__(self, token_bytes: int, entry_bytes: int | None) -> None:
        self.token_bytes = token_bytes
        self.entry_bytes = entry_bytes
        self._steps = 0
        self._selections = 0
        self._sums: Tensor | None = None

    def add(self, batch: Batch, counts: list[Tensor], dense: list[Tensor], selections: int) -> None:
        """One step: `Selection.counts` and `Selection.dense` of every layer, as attention used them."""
        lengths = batch.lengths.to(torch.int64)
        newest = (lengths - 1).remainder(batch.block_size) + 1
        blocks = torch.stack(counts).to(torch.int64)  # [layers, requests, kv heads]
        full = torch.stack(dense)  # [layers, requests]
        selected = (blocks - 1) * batch.block_size + newest[:, None]
        read = torch.where(full[..., None], lengths[:, None], selected)
        finished = (lengths - 1).div(batch.block_size, rounding_mode="floor")
        layers, kv = len(counts), batch.heads.kv
        sums = torch.stack(
            [
                (~full).sum(),
                full.sum(),
                read.sum(),
                lengths.sum() * layers * kv,
                ((~full) * finished).sum() * kv,
            ]
        )
        self._sums = sums if self._sums is None else self._sums + sums
        self._steps += 1
        self._selections += selections

    def total(self) -> Counters:
        """Synchronises with the device."""
        if self._sums is None:
            return Counters(entry_bytes=None if self.entry_bytes is None else 0)
        sparse, dense, read, every, entries = self._sums.tolist()
        return Counters(
            self._steps, self._selections, sparse, dense, read * self.token_bytes, every * self.token_bytes,
            None if self.entry_bytes is None else entries * self.entry_bytes,
        )  # fmt: skip
