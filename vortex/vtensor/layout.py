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
