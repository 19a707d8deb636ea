"""FlashInfer's paged decode over selected blocks of an engine's own pool.

FlashInfer plans per request, a selection differs per KV head: so each (request, KV head) becomes one request
with one KV head, over a view of the pool in which a page starts at every head of every slot.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vortex.attention.provider import Features, StepShape, Unsupported, check_call, require
from vortex.attention.source import load, power_of_two
from vortex.vtensor.batch import Batch, BatchError
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection

WORKSPACE_BYTES = 128 * 2**20
HEAD_DIMS = (64, 128, 256)
GROUPS_WITHOUT_TENSOR_CORES = (1, 2, 3, 4, 8)
HALVES = (torch.float16, torch.bfloat16)
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


@cache
def workspace(device: torch.device) -> Tensor:
    """Scratch for split results, shared by the wrappers of a device: one runs at a time."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


@dataclass(frozen=True)
class FlashInferProvider:
    """tensor_cores: None chooses them where the group has at least 4 heads or no other path exists."""

    tensor_cores: bool | None = None
    name: str = "flashinfer"
    features: frozenset[str] = frozenset({"soft_cap"})

    def uses_tensor_cores(self, group: int) -> bool:
        if self.tensor_cores is None:
            return group >= 4 or group not in GROUPS_WITHOUT_TENSOR_CORES
        return self.tensor_cores

    def refusal(self, shape: StepShape, features: Features) -> str | None:
        heads = shape.heads
        if importlib.util.find_spec("flashinfer") is None:
            return "anything here: FlashInfer is not installed (pip install 'vortex-attention[cuda]')"
        if shape.device.type != "cuda":
            return f"device {shape.device}; it needs CUDA"
        if not shape.fixed_counts:
            return "counts known on the device alone (a budget by length, topP, -inf scores); use 'triton'"
        if not shape.lists_dense:
            return "dense rows that list no blocks; use 'triton'"
        if heads.dim not in HEAD_DIMS:
            return f"a head dim of {heads.dim}, only {', '.join(map(str, HEAD_DIMS))}; use 'triton'"
        if not self.uses_tensor_cores(heads.group) and heads.group not in GROUPS_WITHOUT_TENSOR_CORES:
            return f"a group of {heads.group} query heads without tensor cores"
        if shape.q_dtype not in HALVES or shape.kv_dtype not in (shape.q_dtype, *EIGHT_BITS):
            return f"queries of {shape.q_dtype} over a pool of {shape.kv_dtype}; use 'triton'"
        return None

    def plan(self, shape: StepShape, features: Features, layer: int | None = None) -> PlannedFlashInfer:
        require(self, shape, features, layer)
        return PlannedFlashInfer(shape, features, self.uses_tensor_cores(shape.heads.group))


def overlapping_pages(name: str, tensor: Tensor, block_size: int) -> tuple[Tensor, int]:
    """The pool as pages [pages, block_size, 1, dim], one from every head of every slot, and pages per slot.

    Heads must lie a fraction of a slot apart (an integer one), so that page slot * step + head is right.
    """
    slots, heads, dim = tensor.shape
    slot_stride, head_stride = tensor.stride(0), tensor.stride(1)
    if heads == 1:
        head_stride = slot_stride
    if head_stride <= 0 or slot_stride % head_stride:
        raise Unsupported(
            f"attention provider 'flashinfer' cannot view pool {name!r} as pages: its strides "
            f"{tensor.stride()} have a slot that is no multiple of a head; use 'triton'"
        )
    step = slot_stride // head_stride
    pages = (slots - block_size) * step + heads
    if slots * step >= 2**31:
        raise Unsupported(
            f"attention provider 'flashinfer' has 32-bit pages, pool {name!r} has {slots * step}"
        )
    strides = (head_stride, slot_stride, dim, 1)
    return tensor.as_strided((pages, block_size, 1, dim), strides, tensor.storage_offset()), step


@dataclass
class PlannedFlashInfer:
    """A decode wrapper and the buffers that its plan points to."""

    shape: StepShape
    features: Features
    tensor_cores: bool
    planned: list[int] = field(init=False)
    wrapper: Any = field(init=False)

    def __post_init__(self) -> None:
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        shape, device = self.shape, self.shape.device
        rows = shape.requests * shape.heads.kv
        self.indptr = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.indices = torch.zeros(max(rows * shape.width, 1), dtype=torch.int32, device=device)
        self.last_page_len = torch.ones(rows, dtype=torch.int32, device=device)
        self.padded = torch.zeros(rows, dtype=torch.bool, device=device)
        per_row = (rows, shape.heads.group, shape.heads.dim)
        self.q = torch.empty(per_row, dtype=shape.q_dtype, device=device)
        self.wrapper = BatchDecodeWithPagedKVCacheWrapper(
            workspace(device),
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=self.tensor_cores,
            paged_kv_indptr_buffer=self.indptr,
            paged_kv_indices_buffer=self.indices,
            paged_kv_last_page_len_buffer=self.last_page_len,
            backend="fa2",  # "auto" turns to fa3 for 8-bit pools, three times slower on short pages
        )
        self.module = load("pages.py.jinja")
        self.planned = []
        self.update([shape.width] * shape.requests)

    @property
    def reason(self) -> str:
        return f"FlashInfer decode, tensor cores {'on' if self.tensor_cores else 'off'}"

    def update(self, counts: Sequence[int]) -> None:
        """Plans anew where the counts changed. A padded slot is planned with one page, then zeroed.

        More than a row attends must never be planned: FlashInfer underflows there.
        """
        if len(counts) != self.shape.requests or max(counts, default=0) > self.shape.width:
            raise BatchError(
                f"counts: {self.shape.requests} numbers up to {self.shape.width} are expected, "
                f"got {list(counts)}"
            )
        planned = [max(count, 1) for count in counts]
        if planned == self.planned:
            return
        heads = self.shape.heads
        pages = torch.tensor(planned, dtype=torch.int32).repeat_interleave(heads.kv)
        indptr = torch.zeros(len(pages) + 1, dtype=torch.int32)
        torch.cumsum(pages, 0, dtype=torch.int32, out=indptr[1:])
        full = torch.full((len(pages),), self.shape.block_size, dtype=torch.int32)
        self.wrapper.plan(
            indptr, self.indices[: int(indptr[-1])], full, heads.group, 1, heads.dim, self.shape.block_size,
            logits_soft_cap=self.features.soft_cap or None, q_data_type=self.shape.q_dtype,
            kv_data_type=self.shape.kv_dtype, sm_scale=1.0,
        )  # fmt: skip
        self.planned = planned

    def run(self, q: Tensor, pool: KVPool, selection: Selection, batch: Batch, scale: float,
            out: Tensor | None = None, lse: Tensor | None = None,
            sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
        check_call(self.shape, self.features, q, pool, selection, batch, sinks)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if lse is None else lse
        for name, tensor in (("out", out), ("lse", lse)):
            if not tensor.is_contiguous():
                raise BatchError(f"{name}: provider 'flashinfer' writes contiguous tensors only")
        if not self.shape.requests:
            return out, lse
        if q.is_contiguous():
            rows_q = q.view(self.q.shape)
        else:
            self.q.view(q.shape).copy_(q)
            rows_q = self.q
        k, step = overlapping_pages("k", pool.tensors["k"], batch.block_size)
        v, v_step = overlapping_pages("v", pool.tensors["v"], batch.block_size)
        if k.stride() != v.stride() or step != v_step:
            raise Unsupported(
                "attention provider 'flashinfer' needs K and V of the same strides; use 'triton'"
            )
        self._translate(selection, batch, step)
        rows_out, rows_lse = out.view(self.q.shape), lse.view(self.q.shape[:2])
        self.wrapper.run(rows_q, (k, v), q_scale=scale, k_scale=pool.scale("k"), v_scale=pool.scale("v"),
                         out=rows_out, lse=rows_lse, return_lse=True)  # fmt: skip
        heads = batch.heads
        self.module.settle[(len(rows_q),)](
            rows_out, rows_lse, self.padded, GROUP=heads.group, GROUP_PAD=power_of_two(heads.group),
            DIM=heads.dim, DIM_PAD=power_of_two(heads.dim), num_warps=1,
        )  # fmt: skip
        return out, lse

    def _translate(self, selection: Selection, batch: Batch, step: int) -> None:
        self.module.translate[batch.heads.kv, batch.requests](
            selection.ids, selection.counts, batch.lengths, batch.page_table, self.indptr, self.indices,
            self.last_page_len, self.padded, self.shape.width, batch.page_table.stride(0), step,
            KV_HEADS=batch.heads.kv, BLOCK=batch.block_size, PAGE=batch.page_size, CHUNK=128, num_warps=4,
        )  # fmt: skip


class DenseFlashInfer:
    """Dense paged decode through FlashInfer: the baseline that a sparse step is measured against.

    lengths: tokens of each request, on the host; the batch's page table is read at each `update`, which comes
    before a step. Rows of length 0 are planned without pages.
    """

    def __init__(self, batch: Batch, lengths: Sequence[int], q_dtype: torch.dtype, kv_dtype: torch.dtype,
                 scale: float, tensor_cores: bool) -> None:  # fmt: skip
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        self.batch, self.page_size = batch, batch.page_size
        self.types = {"q_data_type": q_dtype, "kv_data_type": kv_dtype, "sm_scale": scale}
        options: dict[str, Any] = {"dtype": torch.int32, "device": batch.lengths.device}
        self.wrapper = BatchDecodeWithPagedKVCacheWrapper(
            workspace(batch.lengths.device), "NHD", use_cuda_graph=True, use_tensor_cores=tensor_cores,
            paged_kv_indptr_buffer=torch.zeros(batch.requests + 1, **options),
            paged_kv_indices_buffer=torch.zeros(batch.page_table.numel(), **options),
            paged_kv_last_page_len_buffer=torch.ones(batch.requests, **options), backend="fa2",
        )  # fmt: skip
        self.update(lengths)

    def update(self, lengths: Sequence[int]) -> None:
        """Plans a step. Never inside a captured graph."""
        page, heads = self.page_size, self.batch.heads
        pages = [-(-length // page) for length in lengths]
        indptr = torch.zeros(len(pages) + 1, dtype=torch.int32)
        torch.cumsum(torch.tensor(pages, dtype=torch.int32), 0, dtype=torch.int32, out=indptr[1:])
        listed = [self.batch.page_table[row, :count] for row, count in enumerate(pages)]
        last = torch.tensor([(length - 1) % page + 1 for length in lengths], dtype=torch.int32)
        self.wrapper.plan(
            indptr, torch.cat(listed), last, heads.query, heads.kv, heads.dim, page, **self.types
        )

    def run(self, q: Tensor, pool: KVPool, batch: Batch, out: Tensor, sinks: Tensor | None = None) -> Tensor:
        """q, out [requests, query heads, dim]; the batch's lengths are those of the last `update`."""
        assert sinks is None, "dense_kernels offers this kernel for plain attention alone"
        pages = [
            pool.tensors[name].unflatten(0, (pool.tensors[name].shape[0] // self.page_size, self.page_size))
            for name in ("k", "v")
        ]
        self.wrapper.run(q, (pages[0], pages[1]), k_scale=pool.scale("k"), v_scale=pool.scale("v"), out=out)
        return out
