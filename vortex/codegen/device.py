"""What the device is, asked once a process."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@lru_cache
def device_name() -> str:
    """Name of the CUDA device, nothing without one: tuned schedules are kept by it."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


@lru_cache
def overlaps_launches() -> bool:
    """Whether kernels can be launched while the ones before them end: Hopper and later."""
    import torch

    interpreted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    return not interpreted and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


@lru_cache
def _processors(device: torch.device) -> int:
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count


def multiprocessors(tensor: Tensor) -> int:
    """Multiprocessors of the tensor's device; interpreted kernels run one after another."""
    return _processors(tensor.device) if tensor.is_cuda else 2
