"""The ragged metadata of one decode step: one dataclass that every kernel and engine receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class BatchError(ValueError):
    """A batch that contradicts itself; the message names the field and what it should hold."""


@dataclass(frozen=True)
class Heads:
    """Attention heads of one layer on one rank.

    query: query heads; kv: key/value heads, a divisor of `query`; dim: elements of a head.
    """

    query: int
    kv: int
    dim: int

    def __post_init__(self) -> None:
        if min(self.query, self.kv, self.dim) < 1:
            raise BatchError(f"heads: query, kv and dim are positive, got {self}")
        if self.query % self.kv:
            raise BatchError(f"heads: {self.query} query heads are no multiple of {self.kv} KV heads")

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.query // self.kv


@dataclass(frozen=True)
class Batch:
    """Requests of one decode step over a paged pool.

    lengths     int32 [requests]: tokens in the cache, the newest included; 0 marks a padded graph slot
    page_table  int32 [requests, max_pages]: pool page of each page of a request; unused entries are ignored
    slots       int32 [requests]: where a request's state lives; distinct for live requests
    page_size   tokens of a page of the pool; a multiple of block_size
    block_size  tokens of a block, a power of two
    heads       head counts of the layers in this batch

    Block number b of request r is block `page_table[r, b*block_size // page_size] * (page_size //
    block_size) + b % (page_size // block_size)` of the pool: its "pool block id".
    """

    lengths: Tensor
    page_table: Tensor
    slots: Tensor
    page_size: int
    block_size: int
    heads: Heads

    def __post_init__(self) -> None:
        import torch

        tensors = (("lengths", self.lengths, 1), ("page_table", self.page_table, 2), ("slots", self.slots, 1))
        for name, value, ndim in tensors:
            if value.dtype != torch.int32:
                raise BatchError(
                    f"{name}: int32 is expected, got {value.dtype}; convert it once, outside the step"
                )
            if value.ndim != ndim:
                raise BatchError(f"{name}: {ndim} axes are expected, got shape {tuple(value.shape)}")
            if value.shape[0] != self.lengths.shape[0]:
                raise BatchError(f"{name}: {value.shape[0]} rows for {self.lengths.shape[0]} requests")
            if value.device != self.lengths.device:
                raise BatchError(f"{name}: on {value.device}, lengths are on {self.lengths.device}")
        if self.block_size < 1 or self.block_size & (self.block_size - 1):
            raise BatchError(f"block_size: a power of two is expected, got {self.block_size}")
        if self.page_size < 1 or self.page_size % self.block_size:
            raise BatchError(f"page_size: {self.page_size} is no multiple of block_size {self.block_size}")

    @property
    def requests(self) -> int:
        return self.lengths.shape[0]

    @property
    def blocks_per_page(self) -> int:
        return self.page_size // self.block_size

    def check_values(self, *, pages: int | None = None, slots: int | None = None) -> None:
        """Checks what needs the values on the host (a device synchronisation): call it outside a step.

        pages: pages of the pool; slots: state slots. Raises BatchError. Padded rows are not looked at.
        """
        table, width = self.page_table.tolist(), self.page_table.shape[1]
        seen: dict[int, int] = {}
        for row, (length, slot) in enumerate(zip(self.lengths.tolist(), self.slots.tolist(), strict=True)):
            if length < 0:
                raise BatchError(f"lengths: request {row} has {length} tokens")
            if length == 0:
                continue
            if slot < 0 or (slots is not None and slot >= slots):
                raise BatchError(f"slots: request {row} has state slot {slot}{_of(slots)}")
            if seen.setdefault(slot, row) != row:
                raise BatchError(f"slots: requests {seen[slot]} and {row} share state slot {slot}")
            needed = -(-length // self.page_size)
            if needed > width:
                raise BatchError(
                    f"page_table: request {row} of {length} tokens needs {needed} pages, the table holds {width}"
                )
            used = table[row][:needed]
            wrong = [page for page in used if page < 0 or (pages is not None and page >= pages)]
            if wrong:
                raise BatchError(
                    f"page_table: request {row} has page {wrong[0]}{_of(pages)} among its first {needed}"
                )
            if len(set(used)) < needed:
                raise BatchError(f"page_table: request {row} has one page twice among its first {needed}")

    def finished_blocks(self, row: int) -> int:
        """Blocks before the current one: the size of the `block` axis of this request (host)."""
        length = int(self.lengths[row])
        return max(length - 1, 0) // self.block_size

    def pool_blocks(self, row: int, count: int) -> Tensor:
        """Pool block ids of the first `count` blocks of a request, int64 [count]."""
        import torch

        per_page = self.blocks_per_page
        pages = self.page_table[row, : -(-count // per_page)].to(torch.int64)
        if per_page == 1:
            return pages
        within = torch.arange(per_page, device=pages.device)
        return (pages[:, None] * per_page + within).reshape(-1)[:count]


def _of(count: int | None) -> str:
    return "" if count is None else f" of {count}"
