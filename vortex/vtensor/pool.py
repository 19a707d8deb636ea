"""The KV pool of one layer, as engines lay it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vortex.vtensor.batch import BatchError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KVPool:
    """One layer's cache by token slot.

    tensors    name of the input ("k", "v", or what the model's view names) -> [slots, heads, width], any
               strides with a contiguous last axis; slot = page * page_size + offset
    page_size  tokens of a page
    scales     name -> factor that turns a stored 8-bit value into the value attention sees (1.0 otherwise)
    """

    tensors: Mapping[str, Tensor]
    page_size: int
    scales: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name, tensor in self.tensors.items():
            if tensor.ndim != 3:
                raise BatchError(
                    f"pool {name!r}: [slots, heads, width] is expected, got {tuple(tensor.shape)}"
                )
            if tensor.stride(-1) != 1:
                raise BatchError(
                    f"pool {name!r}: the last axis is not contiguous (strides {tensor.stride()})"
                )

    def scale(self, name: str) -> float:
        return (self.scales or {}).get(name, 1.0)

    def blocks(self, name: str, block_ids: Tensor, block_size: int, head: int) -> Tensor:
        """Tokens of the given pool blocks for one head, as stored: [blocks, block_size, width]."""
        import torch

        within = torch.arange(block_size, device=block_ids.device)
        slots = block_ids[:, None] * block_size + within
        return self.tensors[name][slots, head]
