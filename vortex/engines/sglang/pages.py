"""Which entries belong to the tokens in the pool now: blocks become invalid when their slots are handed out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vortex.vtensor.batch import Batch

HANDS_OUT = ("alloc", "alloc_extend")
"""Methods of SGLang's allocators that return slots. `alloc_decode` is left alone: see `snapshot`."""

MOST_PENDING = 4096
"""Allocations that are remembered before all blocks are taken to be invalid instead."""

PAGES_AT_ONCE = 1024


class Pages:
    """Follows an allocator of token slots.

    valid       int8 [pool blocks]: 1 where the entries are those of the tokens that lie there now
    block_size  tokens of a block

    Slots are handed out while older steps still run, and these may yet mark a block valid. So they are remembered
    here, and cleared in order by the stream that runs the next forward pass: `apply`.
    """

    def __init__(self, valid: Tensor, block_size: int) -> None:
        self.valid = valid
        self.block_size = block_size
        self.pending: list[Tensor] = []
        self.everything = False

    def follow(self, allocator: Any) -> None:
        """Wraps the allocator's methods. Raises AttributeError where it has none of that name."""
        for name in HANDS_OUT:
            setattr(allocator, name, self._watched(getattr(allocator, name)))

    def _watched(self, hand_out: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
        @functools.wraps(hand_out)
        def watched(*args: Any, **named: Any) -> Tensor | None:
            slots = hand_out(*args, **named)
            if slots is not None and slots.numel():
                self.pending.append(slots)
                # A server that only prefills never looks at what waits here.
                if len(self.pending) > MOST_PENDING:
                    self.everything = True
                    self.pending.clear()
            return slots

        return watched

    def apply(self) -> None:
        """Before a forward pass, on its stream: what was handed out since the last one is invalid."""
        if self.everything:
            self.valid.zero_()
            self.everything = False
            self.pending.clear()
        if not self.pending:
            return
        slots = self.pending[0] if len(self.pending) == 1 else torch.cat(self.pending)
        if slots.is_cuda:
            for each in self.pending:
                each.record_stream(torch.cuda.current_stream())
        self.pending.clear()
        self.valid.index_fill_(0, slots // self.block_size, 0)


def snapshot(req_to_token: Tensor, rows: Tensor, seq_lens: Tensor, batch: Batch, valid: Tensor) -> None:
    """Copies what a decode step reads of SGLang's tables, which are overwritten while the step runs.

    req_to_token  int32 [rows, tokens]: slot of each token of a request; row 0 is nobody's
    rows          int64 [requests]: row of each request; 0 for a padded one, which gets length 0
    seq_lens      int32 or int64 [requests]: tokens, the newest included
    batch         lengths, slots and page table are written, of pages as far as the request has tokens

    The block of the newest token becomes invalid. This is why decode allocations are not watched: each block is
    the current one in the step that writes its first token.
    """
    if seq_lens.is_cuda:
        launch_snapshot(req_to_token, rows, seq_lens, batch, valid)
        return
    batch.lengths.copy_(torch.where(rows > 0, seq_lens, 0))
    batch.slots.copy_(rows)
    for row, (held, tokens) in enumerate(zip(rows.tolist(), batch.lengths.tolist(), strict=True)):
        if tokens:
            first = req_to_token[held, : tokens : batch.page_size]
            batch.page_table[row, : len(first)] = first // batch.page_size
            current = (tokens - 1) // batch.block_size * batch.block_size
            valid[int(req_to_token[held, current]) // batch.block_size] = 0


def launch_snapshot(
    req_to_token: Tensor, rows: Tensor, seq_lens: Tensor, batch: Batch, valid: Tensor
) -> None:
    """`snapshot` as one kernel."""
    from vortex.attention.source import load

    parts = -(-batch.page_table.shape[1] // PAGES_AT_ONCE)
    load("snapshot.py.jinja").snapshot[parts, batch.requests](
        req_to_token, rows, seq_lens, batch.lengths, batch.slots, batch.page_table, valid,
        req_to_token.stride(0), batch.page_table.stride(0),
        PAGE=batch.page_size, BLOCK=batch.block_size, TILE=PAGES_AT_ONCE, num_warps=4,
    )  # fmt: skip
