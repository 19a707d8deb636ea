"""Values of a flow's `Parameter`s: read from a file beside the algorithm, or made from a seed."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from vortex.dsl.ir import Program, Weight

if TYPE_CHECKING:
    from torch import Tensor


class WeightError(ValueError):
    """A parameter file that is missing, or does not hold what the flow declares."""


def weight_shape(program: Program, weight: Weight) -> tuple[int, ...]:
    """[layers,] [kv heads,] axes…"""
    leading = (program.shape.layers,) * weight.per_layer + (program.shape.kv_heads,) * weight.per_kv
    return (*leading, *(axis.size or 0 for axis in weight.axes))


def load_weights(program: Program, folder: str | None = None) -> dict[str, Tensor]:
    """Every parameter of a program as `weight_shape` says, fp32, int64 or bool.

    folder  where parameter files lie; by default the folder of the algorithm file

    Raises WeightError.
    """
    base = folder if folder is not None else os.path.dirname(os.path.abspath(program.file))
    return {weight.name: _load(program, weight, base) for weight in program.weights}


def _load(program: Program, weight: Weight, base: str) -> Tensor:
    import torch

    shape = weight_shape(program, weight)
    held = {"int32": torch.int64, "bool": torch.bool}.get(weight.dtype, torch.float32)
    if weight.file is None:
        return _initial(weight, shape).to(held)
    path = os.path.join(base, weight.file)
    if not os.path.isfile(path):
        raise WeightError(f"parameter {weight.name!r}: there is no file {path}")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as opened:
            if weight.name not in opened.keys():  # noqa: SIM118  (safe_open is no mapping)
                names = ", ".join(sorted(opened.keys())[:8])
                raise WeightError(f"parameter {weight.name!r}: {path} holds {names}")
            value = opened.get_tensor(weight.name)
    except SafetensorError as error:
        raise WeightError(f"parameter {weight.name!r}: {path} is no safetensors file ({error})") from None
    if tuple(value.shape) != shape:
        raise WeightError(
            f"parameter {weight.name!r}: {path} holds {tuple(value.shape)}, and {shape} is declared: "
            f"{', '.join(weight.axis_names)}"
        )
    return value.to(held)


def _initial(weight: Weight, shape: tuple[int, ...]) -> Tensor:
    import torch

    generator = torch.Generator("cpu").manual_seed(weight.seed)
    rank = len(weight.axes)
    if weight.init == "zeros":
        return torch.zeros(shape, device="cpu")
    if weight.init == "ones":
        return torch.ones(shape, device="cpu")
    if weight.init == "uniform":
        return torch.rand(shape, generator=generator, device="cpu")
    if weight.init == "arange":
        return (
            torch.arange(shape[-1] if shape else 1, device="cpu").expand(shape).clone()
            if shape
            else torch.zeros((), device="cpu")
        )
    normal = torch.randn(shape, generator=generator, device="cpu")
    if weight.init == "orthogonal" and rank >= 2:
        tall = shape[-2] >= shape[-1]
        q, _ = torch.linalg.qr(normal if tall else normal.mT)
        return q if tall else q.mT
    return normal / math.sqrt(shape[-rank] if rank else 1)
