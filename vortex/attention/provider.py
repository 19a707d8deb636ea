"""What every attention provider is given and gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vortex.vtensor.batch import Batch, BatchError, Heads
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Unsupported(ValueError):
    """A provider that cannot do what a layer asks; the message names provider, layer, feature and remedy."""


@dataclass(frozen=True)
class Features:
    """What a model asks of attention beyond softmax(q k) v.

    window    a query attends the last `window` tokens alone, itself included; None: all
    soft_cap  logits become soft_cap * tanh(logits / soft_cap); 0: as they are (Gemma 2)
    sinks     a learned logit per query head takes part in the softmax and has no value (gpt-oss)
    """

    window: int | None = None
    soft_cap: float = 0.0
    sinks: bool = False

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window: at least one token (the newest) is attended, got {self.window}")
        if self.soft_cap < 0:
            raise ValueError(f"soft_cap: positive, or 0 for none, got {self.soft_cap}")

    def asked(self) -> dict[str, str]:
        """The features in use, name -> how a message calls it."""
        names = {}
        if self.window is not None:
            names["window"] = f"a sliding window of {self.window} tokens"
        if self.soft_cap:
            names["soft_cap"] = f"a logit soft-cap of {self.soft_cap:g}"
        if self.sinks:
            names["sinks"] = "attention sinks"
        return names


@dataclass(frozen=True)
class StepShape:
    """All that a plan may depend on: sizes of one layer's decode step, no values.

    requests     rows of the batch, padded slots included
    width        columns of `Selection.ids`
    max_blocks   blocks of the longest request that may come
    q_dtype, kv_dtype   of the query and of the stored K and V
    fixed_counts attended blocks follow from the lengths alone (a constant budget, exact top-k, no -inf
                 scores), so the host knows them; False: they are known on the device alone
    lists_dense  `Selection.ids` also lists the blocks of dense rows
    """

    requests: int
    heads: Heads
    block_size: int
    page_size: int
    width: int
    max_blocks: int
    q_dtype: torch.dtype
    kv_dtype: torch.dtype
    device: torch.device
    fixed_counts: bool = True
    lists_dense: bool = True


class Planned(Protocol):
    """A provider bound to one shape, with its buffers. Shared by the layers of that shape."""

    @property
    def reason(self) -> str:
        """Why it looks as it does, in one line: splits, warps, the path taken."""
        ...

    def update(self, counts: Sequence[int]) -> None:
        """Tells the attended blocks of each request on the host, before a step in which they change.

        counts: [requests], 0 for a padded slot. Never inside a captured graph. Providers that read counts
        on the device ignore it.
        """
        ...

    def run(
        self,
        q: Tensor,
        pool: KVPool,
        selection: Selection,
        batch: Batch,
        scale: float,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attends the selected blocks of every (request, KV head).

        q      [requests, query heads, dim], last axis contiguous, any row and head stride
        pool   "k" and "v", [slots, KV heads, dim]
        scale  factor of the logits before soft-cap, usually 1/sqrt(dim)
        out    [requests, query heads, dim], dtype of q; every element is written
        lse    fp32 [requests, query heads]: natural logarithm of the softmax's denominator, sink included
        sinks  fp32 [query heads], with `Features.sinks`
        A row without a valid key (a padded slot, an empty selection) gives zeros and -inf (its sink, if
        there are sinks). With `out` and `lse` given nothing is allocated; there is no host
        synchronisation (the reference, which is no GPU path, excepted).
        """
        ...


class Provider(Protocol):
    """One implementation of attention, by name."""

    @property
    def name(self) -> str: ...

    @property
    def features(self) -> frozenset[str]:
        """Names of the supported fields of `Features`."""
        ...

    def refusal(self, shape: StepShape, features: Features) -> str | None:
        """What of this shape the provider cannot do, as the end of "cannot do ..."; None: it can."""
        ...

    def plan(self, shape: StepShape, features: Features, layer: int | None = None) -> Planned:
        """All host decisions and allocations. Raises Unsupported."""
        ...


def require(provider: Provider, shape: StepShape, features: Features, layer: int | None) -> None:
    """Raises Unsupported where the provider lacks a feature or refuses the shape."""
    where = "" if layer is None else f"layer {layer}: "
    for name, words in features.asked().items():
        if name not in provider.features:
            raise Unsupported(
                f"{where}attention provider {provider.name!r} has no support for {words}; "
                "use provider 'triton' or 'reference'"
            )
    reason = provider.refusal(shape, features)
    if reason is not None:
        raise Unsupported(f"{where}attention provider {provider.name!r} cannot do {reason}")


def check_call(shape: StepShape, features: Features, q: Tensor, pool: KVPool, selection: Selection,
               batch: Batch, sinks: Tensor | None) -> None:  # fmt: skip
    """Refuses a call that is not of the planned shape, before anything reads memory; no synchronisation."""
    import torch

    heads = shape.heads
    if batch.heads != heads or batch.requests != shape.requests or batch.block_size != shape.block_size:
        raise BatchError(
            f"the batch ({batch.requests} requests, block size {batch.block_size}, {batch.heads}) is not "
            f"what was planned ({shape.requests}, {shape.block_size}, {heads})"
        )
    if batch.page_size != pool.page_size:
        raise BatchError(f"page_size: the batch says {batch.page_size}, the pool {pool.page_size}")
    if tuple(q.shape) != (shape.requests, heads.query, heads.dim) or q.stride(-1) != 1:
        raise BatchError(
            f"q: [{shape.requests}, {heads.query}, {heads.dim}] with a contiguous last axis is expected, "
            f"got {tuple(q.shape)} with strides {q.stride()}"
        )
    if q.dtype != shape.q_dtype:
        raise BatchError(f"q: {shape.q_dtype} was planned, got {q.dtype}")
    for name in ("k", "v"):
        tensor = pool.tensors[name]
        if tuple(tensor.shape[1:]) != (heads.kv, heads.dim) or tensor.dtype != shape.kv_dtype:
            raise BatchError(
                f"pool {name!r}: [slots, {heads.kv}, {heads.dim}] of {shape.kv_dtype} was planned, "
                f"got {tuple(tensor.shape)} of {tensor.dtype}"
            )
    rows = (shape.requests, heads.kv)
    for name, tensor, wanted, dtype in (
        ("ids", selection.ids, (*rows, shape.width), torch.int32),
        ("counts", selection.counts, rows, torch.int32),
        ("dense", selection.dense, rows[:1], torch.bool),
    ):
        if tensor.dtype != dtype or tuple(tensor.shape) != wanted:
            raise BatchError(
                f"selection.{name}: {dtype} {wanted} is expected, got {tensor.dtype} {tuple(tensor.shape)}"
            )
    if selection.lists_dense != shape.lists_dense:
        raise BatchError(
            f"selection.lists_dense: {shape.lists_dense} was planned, got {selection.lists_dense}"
        )
    if features.sinks != (sinks is not None):
        raise BatchError("sinks: given exactly where the features say so")
    if sinks is not None and (tuple(sinks.shape) != (heads.query,) or sinks.dtype != torch.float32):
        raise BatchError(f"sinks: fp32 [{heads.query}] is expected, got {sinks.dtype} {tuple(sinks.shape)}")
