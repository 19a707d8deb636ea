"""What an indexer hands to attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """Attended blocks of every (request, KV head) of one layer.

    ids     int32 [requests, kv_heads, width]: block numbers of the request, ascending, the current block
            last; -1 from `counts` on
    counts  int32 [requests, kv_heads]: attended blocks; 0 only for a padded slot
    dense   bool [requests]: rows whose every block is attended (ids list them all as well, where the
            producer says so in `lists_dense`)

    The newest block holds `(length - 1) % block_size + 1` tokens, every other one `block_size`.
    """

    ids: Tensor
    counts: Tensor
    dense: Tensor
    lists_dense: bool = True
