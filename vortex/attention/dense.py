"""Dense paged decode: what a sparse step is measured against, and what serves where sparsity does not pay."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from vortex.attention.provider import Features, StepShape
from vortex.attention.reference import ReferenceProvider
from vortex.attention.triton_split import Schedule, TritonProvider, dense_schedules
from vortex.vtensor.batch import Batch
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection


class DenseKernel(Protocol):
    """Attends all tokens of every row; shared by the layers of a model."""

    def update(self, lengths: Sequence[int]) -> None:
        """Tells the lengths on the host before a step. Kernels that read them on the device ignore it."""
        ...

    def run(self, q: Tensor, pool: KVPool, batch: Batch, out: Tensor, sinks: Tensor | None = None) -> Tensor:
        """q, out [requests, query heads, dim]; a padded row becomes zeros. Allocates nothing.

        sinks: fp32 [query heads], with `Features.sinks`
        """
        ...


class WalkedDense:
    """A provider whose rows walk their page tables, because each of them is marked dense."""

    def __init__(
        self, provider: TritonProvider | ReferenceProvider, shape: StepShape, features: Features, scale: float
    ) -> None:
        shape = replace(shape, width=1, fixed_counts=False, lists_dense=False)
        self.planned = provider.plan(shape, features)
        self.scale = scale
        rows, device = (shape.requests, shape.heads.kv), shape.device
        self.selection = Selection(
            torch.full((*rows, 1), -1, dtype=torch.int32, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.ones(shape.requests, dtype=torch.bool, device=device),
            lists_dense=False,
        )
        self.lse = torch.empty(shape.requests, shape.heads.query, dtype=torch.float32, device=device)

    def update(self, lengths: Sequence[int]) -> None:
        pass

    def run(self, q: Tensor, pool: KVPool, batch: Batch, out: Tensor, sinks: Tensor | None = None) -> Tensor:
        self.planned.run(q, pool, self.selection, batch, self.scale, out, self.lse, sinks)
        return out


Maker = Callable[[StepShape, Features, Batch, float], DenseKernel]


def dense_kernels(shape: StepShape, features: Features) -> dict[str, Maker]:
    """Label -> how it is made, of all that can serve a shape here; the first needs no `update`."""
    if shape.device.type != "cuda":
        return {"reference": lambda shape, features, batch, scale: WalkedDense(
            ReferenceProvider(), shape, features, scale)}  # fmt: skip
    processors = torch.cuda.get_device_properties(shape.device).multi_processor_count
    found: dict[str, Maker] = {
        f"triton ({schedule})": _walked(schedule) for schedule in dense_schedules(shape, processors)
    }
    if importlib.util.find_spec("flashinfer") is not None and _plain_halves(shape, features):
        for name, tensor_cores in (("tensor cores", True), ("no tensor cores", False)):
            if tensor_cores or shape.heads.group in (1, 2, 4, 8):
                found[f"flashinfer ({name})"] = _flashinfer(tensor_cores)
    return found


def _plain_halves(shape: StepShape, features: Features) -> bool:
    """Whether FlashInfer's paged decode serves it as it is."""
    halves = (torch.float16, torch.bfloat16)
    return shape.heads.dim in (64, 128, 256) and shape.q_dtype in halves and not features.asked()


def _walked(schedule: Schedule) -> Maker:
    return lambda shape, features, batch, scale: WalkedDense(TritonProvider(schedule), shape, features, scale)


def _flashinfer(tensor_cores: bool) -> Maker:
    def make(shape: StepShape, features: Features, batch: Batch, scale: float) -> DenseKernel:
        from vortex.attention.flashinfer import DenseFlashInfer

        lengths = batch.lengths.tolist()
        return DenseFlashInfer(batch, lengths, shape.q_dtype, shape.kv_dtype, scale, tensor_cores)

    return make
