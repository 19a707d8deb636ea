"""The KV pool of all layers, and how a request's pages become indices into it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vortex.engines.transformers.allocator import PageAllocator
from vortex.vtensor.batch import Heads
from vortex.vtensor.pool import KVPool


class PagedPool:
    """K and V of every layer by token slot, with the allocator of their pages.

    tokens: what the pool shall hold, rounded up to pages; the dummy page 0 comes on top.
    """

    def __init__(
        self,
        *,
        layers: int,
        tokens: int,
        page_size: int,
        block_size: int,
        heads: Heads,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        pages = -(-tokens // page_size) + 1
        self.page_size = page_size
        self.allocator = PageAllocator(pages, page_size, block_size)
        self.pool_blocks = pages * page_size // block_size
        shape = (layers, pages * page_size, heads.kv, heads.dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = [KVPool({"k": k, "v": v}, page_size) for k, v in zip(self.k, self.v, strict=True)]

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token of one KV head of one layer."""
        return 2 * self.k.shape[-1] * self.k.element_size()

    def slots(self, pages: Sequence[int], start: int, stop: int) -> Tensor:
        """Pool slots of the tokens start to stop of a request, int64 [stop - start]."""
        position = np.arange(start, stop)
        slot = np.asarray(pages, dtype=np.int64)[position // self.page_size] * self.page_size
        return torch.from_numpy(slot + position % self.page_size).to(self.k.device)
