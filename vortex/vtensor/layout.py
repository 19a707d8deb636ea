"""The four ways a tensor lies over a batch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Layout(Enum):
    """How the leading axis of a vTensor is indexed.

    PAGED   [pool blocks, kv heads, axes…]   per block, by the KV allocator's ids; follows prefix caching
    RAGGED  [sum of blocks, kv heads, axes…] per block of a request, concatenated, with `indptr`
    DENSE   [requests, kv heads, axes…]      one row per request
    STATE   [slots, kv heads, (max blocks,) axes…] by request slot; outlives the step
    """

    PAGED = "paged"
    RAGGED = "ragged"
    DENSE = "dense"
    STATE = "state"


@dataclass(frozen=True)
class VTensor:
    """A tensor plus how it lies over a batch.

    data    the storage, shaped as `Layout` says
    layout  which of the four
    axes    names of the axes after (leading, kv head), as a flow's author sees them, `block` left out
            where the leading axis is the block
    indptr  int32 [requests + 1], for RAGGED: rows of request r are indptr[r] to indptr[r+1]
    """

    data: Tensor
    layout: Layout
    axes: tuple[str, ...]
    indptr: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.layout is Layout.RAGGED) != (self.indptr is not None):
            raise ValueError(
                f"{self.layout.value} tensor: indptr belongs to ragged tensors, and to them alone"
            )
        leading = 3 if self.layout is Layout.STATE and "block" in self.axes else 2
        others = [name for name in self.axes if name != "block"] if leading == 3 else self.axes
        if self.data.ndim != leading + len(others):
            raise ValueError(
                f"{self.layout.value} tensor: {tuple(self.data.shape)} does not have the axes {self.axes} "
                f"after the first {leading}"
            )
        if self.indptr is not None:
            self._check_indptr(self.indptr)

    def _check_indptr(self, indptr: Tensor) -> None:
        import torch

        if indptr.dtype != torch.int32 or indptr.ndim != 1 or not len(indptr):
            raise ValueError(
                f"ragged tensor: indptr is int32 [requests + 1], got {indptr.dtype} {tuple(indptr.shape)}"
            )

    def request(self, row: int, pool_blocks: Tensor | None = None) -> Tensor:
        """The part of one request (or state slot) as a flow sees it, [kv heads, (block,) axes…]: a copy where paged.

        pool_blocks: int64 ids of the request's blocks, for PAGED.
        """
        if self.layout is Layout.PAGED:
            if pool_blocks is None:
                raise ValueError("paged tensor: the ids of the request's blocks are needed")
            return self.data.index_select(0, pool_blocks).movedim(1, 0)
        if self.indptr is not None:
            first, last = self.indptr[row : row + 2].tolist()
            return self.data[first:last].movedim(1, 0)
        return self.data[row]
