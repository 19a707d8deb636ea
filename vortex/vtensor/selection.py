"""What an indexer hands to attention."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vortex.vtensor.batch import Batch, BatchError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """Attended blocks of every (request, KV head) of one layer.

    ids     int32 [requests, kv_heads, width]: block numbers of the request, ascending, the current block
            last; -1 from `counts` on
    counts  int32 [requests, kv_heads]: attended blocks; 0 only for a padded slot
    dense   bool [requests]: rows whose every block is attended
    lists_dense  whether ids and counts list every block of dense rows as well. Otherwise their rows, and those of
            padded slots, say nothing (in a layer of `dense_layers` no table is written): lengths and `dense` decide

    The newest block holds `(length - 1) % block_size + 1` tokens, every other one `block_size`.
    """

    ids: Tensor
    counts: Tensor
    dense: Tensor
    lists_dense: bool = True


def listed(attended: Tensor, dense: Tensor) -> Selection:
    """The selection of the blocks that are True in bool [requests, kv heads, blocks]; dense: bool [requests]."""
    import torch

    counts = attended.sum(-1, dtype=torch.int32)
    width = max(counts.flatten().tolist(), default=0)
    ids = torch.full((*counts.shape, width), -1, dtype=torch.int32, device=attended.device)
    places = torch.arange(width, dtype=torch.int32, device=attended.device) < counts[..., None]
    ids.masked_scatter_(places, attended.nonzero()[:, -1].to(torch.int32))
    return Selection(ids, counts, dense)


def check_selection(selection: Selection, batch: Batch) -> None:
    """Raises BatchError where a selection breaks what `Selection` promises for this batch.

    Reads the values on the host: for tests and for finding a fault, not for a step.
    """
    import torch

    rows = (batch.requests, batch.heads.kv)
    ids, counts, dense = selection.ids, selection.counts, selection.dense
    for name, value, dtype, shape in (
        ("ids", ids, torch.int32, (*rows, ids.shape[-1] if ids.ndim else 0)),
        ("counts", counts, torch.int32, rows),
        ("dense", dense, torch.bool, rows[:1]),
    ):
        if value.dtype != dtype or tuple(value.shape) != shape:
            raise BatchError(
                f"selection.{name}: {dtype} {shape} is expected, got {value.dtype} {tuple(value.shape)}"
            )
    for request, tokens in enumerate(batch.lengths.tolist()):
        blocks = -(-tokens // batch.block_size)
        whole = bool(dense[request])
        for head in range(batch.heads.kv):
            row, count = ids[request, head].tolist(), int(counts[request, head])
            if selection.lists_dense or (tokens and not whole):
                _check_row(f"request {request}, KV head {head}", row, count, blocks, whole)


def _check_row(what: str, row: list[int], count: int, blocks: int, whole: bool) -> None:
    if whole and count != blocks:
        raise BatchError(f"{what}: a dense row of {blocks} blocks counts {count}")
    if count > blocks or (count == 0) != (blocks == 0):
        raise BatchError(f"{what}: {count} attended of {blocks} blocks")
    if count > len(row):
        raise BatchError(f"{what}: {count} attended, the table is {len(row)} wide")
    attended, rest = row[:count], row[count:]
    if any(each != -1 for each in rest):
        raise BatchError(f"{what}: -1 is expected after the first {count} ids, got {rest}")
    if any(a >= b for a, b in itertools.pairwise(attended)):
        raise BatchError(f"{what}: ids are not ascending and distinct: {attended}")
    if attended and (attended[0] < 0 or attended[-1] != blocks - 1):
        raise BatchError(
            f"{what}: ids from 0 to the current block {blocks - 1}, which is last, got {attended}"
        )
