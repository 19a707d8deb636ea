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

        requests = self.lengths.shape[0] if self.lengths.ndim == 1 else -1
        for name, value, ndim in (("lengths", self.lengths, 1), ("page_table", self.page_table, 2),
                                  ("slots", self.slots, 1)):  # fmt: skip
            if value.dtype != torch.int32:
                raise BatchError(
                    f"{name}: int32 is expected, got {value.dtype}; convert it once, outside the step"
                )
            if value.ndim != ndim:
                raise BatchError(f"{name}: {ndim} axes are expected, got shape {tuple(value.shape)}")
            if value.shape[0] != requests:
                raise BatchError(f"{name}: {value.shape[0]} rows for {requests} requests")
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

    def check_values(self) -> None:
        """Checks what needs the values on the host (a device synchronisation): call it outside a step."""
        lengths = self.lengths.tolist()
        slots = self.slots.tolist()
        live = [slot for slot, length in zip(slots, lengths, strict=True) if length]
        if min(lengths, default=0) < 0:
            raise BatchError("lengths: a negative length")
        if len(set(live)) != len(live):
            raise BatchError("slots: two live requests share a state slot")
        width = self.page_table.shape[1]
        for row, length in enumerate(lengths):
            pages = -(-length // self.page_size)
            if pages > width:
                raise BatchError(
                    f"page_table: request {row} of {length} tokens needs {pages} pages, the table holds {width}"
                )
            if pages and int(self.page_table[row, :pages].min()) < 0:
                raise BatchError(f"page_table: request {row} has a negative page among its first {pages}")

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
