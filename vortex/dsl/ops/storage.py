"""What values become when they are stored in fewer bits: the eager reference of rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BITS = {"fp32": 32, "int32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "bool": 8, "int4": 4, "sign": 1}
"""Bits of one stored element; int8 and int4 add one fp16 scale per last axis."""

LIMIT = {"int8": 127, "int4": 7}
FP8_LARGEST = 448.0
"""The largest finite e4m3 value; conversion saturates there."""


def rounded(x: Tensor, to: str) -> Tensor:
    """`x` after a round trip through the storage dtype, in the dtype of `x` (int64 and bool for those two)."""
    import torch

    if to == "fp32":
        return x.to(torch.float32).to(x.dtype) if x.is_floating_point() else x.to(torch.float32)
    if to == "int32":
        return x.to(torch.int64)
    if to == "bool":
        return x != 0
    held = x if x.is_floating_point() else x.to(torch.float32)
    if to == "sign":
        return torch.where(held >= 0, 1.0, -1.0).to(held.dtype)
    if to in LIMIT:
        return _scaled_integers(held, LIMIT[to])
    if to == "fp8":
        return held.clamp(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn).to(held.dtype)
    return held.to({"bf16": torch.bfloat16, "fp16": torch.float16}[to]).to(held.dtype)


def _scaled_integers(x: Tensor, limit: int) -> Tensor:
    """Integers within ±limit times one fp16 scale per last axis; a row of zeros keeps scale 0."""
    import torch

    scale = (x.abs().amax(-1, keepdim=True) / limit).to(torch.float16).to(x.dtype)
    steps = torch.where(scale > 0, x / torch.where(scale > 0, scale, 1.0), torch.zeros_like(x))
    return steps.round().clamp(-limit, limit) * scale
