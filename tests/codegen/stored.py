"""Memory of compiled flows as tests see it: filled with garbage, and read back as values."""

from __future__ import annotations

import torch

from vortex.codegen.storage import DeviceStorage

GARBAGE_ID = 987_654_321


def spoil(tensor: torch.Tensor) -> None:
    if tensor.dtype in (torch.int32, torch.int64):
        tensor.fill_(GARBAGE_ID)
    elif tensor.is_floating_point() and tensor.itemsize > 1:
        tensor.fill_(torch.nan)
    else:
        tensor.view(torch.uint8).fill_(0x7F)


def read_entry(memory: DeviceStorage, layer: int, name: str, kind: str, shape: torch.Size) -> torch.Tensor:
    """Stored entries as values over [pool blocks, KV heads, axes…]."""
    held = memory.entries[layer][name]
    if kind not in ("int8", "int4", "sign"):
        return held.reshape(shape).to(torch.float32 if held.is_floating_point() else held.dtype)
    last = shape[-1]
    if kind == "int8":
        values = held.reshape(shape).float()
    else:
        bits, count = (4, 2) if kind == "int4" else (1, 8)
        cells = held.reshape(*shape[:-1], -1).int()
        parts = (cells[..., None] >> (torch.arange(count, device=cells.device) * bits)) & (2**bits - 1)
        values = parts.flatten(-2)[..., :last].float()
        if kind == "sign":
            return values * 2 - 1
        values = torch.where(values > 7, values - 16, values)
    return values * memory.scales[layer][name].reshape(*shape[:-1], 1).float()


def storage_step(values: torch.Tensor, kind: str) -> torch.Tensor:
    """How far apart neighbours of these values are in their storage."""
    digits = {"fp32": 23, "fp16": 10, "bf16": 7, "fp8": 3}
    if kind in digits:
        least = {"fp16": 2.0**-24, "fp8": 2.0**-9}.get(kind, 0.0)
        exponent = values.abs().clamp(min=1e-38).log2().floor()
        return torch.exp2(exponent - digits[kind]).clamp(min=least).nan_to_num(0.0)
    limit = {"int8": 127, "int4": 7}[kind]
    return (values.abs().amax(-1, keepdim=True) / limit * 1.001).expand_as(values)


def size_of(values: torch.Tensor) -> float:
    finite = values[values.isfinite()]
    return float(finite.abs().amax()) if finite.numel() else 0.0
