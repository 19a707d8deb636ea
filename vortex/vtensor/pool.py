"""The KV pool of one layer, as engines lay it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vortex.vtensor.batch import BatchError

if TYPE_CHECKING:
    import torch
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
        if not self.tensors:
            raise BatchError("pool: at least one tensor is expected")
        if self.page_size < 1:
            raise BatchError(f"pool: page_size is positive, got {self.page_size}")
        for name, tensor in self.tensors.items():
            if tensor.ndim != 3:
                raise BatchError(
                    f"pool {name!r}: [slots, heads, width] is expected, got {tuple(tensor.shape)}"
                )
            if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
                raise BatchError(
                    f"pool {name!r}: the last axis is not contiguous (strides {tensor.stride()})"
                )
        slots = {name: tensor.shape[0] for name, tensor in self.tensors.items()}
        if len(set(slots.values())) > 1:
            raise BatchError(f"pool: tensors of one pool have the same number of slots, got {slots}")
        for name in self.scales or {}:
            if name not in self.tensors:
                raise BatchError(f"pool: a scale for {name!r}, but the tensors are {', '.join(self.tensors)}")

    @property
    def dtype(self) -> torch.dtype:
        """The KV dtype: of keys and values, and so of entries stored without a Cast."""
        return next(iter(self.tensors.values())).dtype

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    def scale(self, name: str) -> float:
        return (self.scales or {}).get(name, 1.0)

    def blocks(self, name: str, block_ids: Tensor, block_size: int, head: int | None = None) -> Tensor:
        """Tokens of the given pool blocks as stored: [blocks, block_size, heads, width], or without heads for one."""
        import torch

        within = torch.arange(block_size, device=block_ids.device)
        slots = (block_ids[:, None] * block_size + within).flatten()
        held = self.tensors[name] if head is None else self.tensors[name][:, head]
        return held.index_select(0, slots).unflatten(0, (len(block_ids), block_size))
