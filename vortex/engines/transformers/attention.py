"""The attention function that Transformers calls, and what it does in a prefill and in a decode step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vortex.engines.transformers.pool import PagedPool
from vortex.vtensor.batch import Batch
from vortex.vtensor.runner import FlowRunner, Storage
from vortex.vtensor.selection import Selection

if TYPE_CHECKING:
    from vortex.attention.provider import Planned, Provider, StepShape

NAME = "vortex"
MAX_PLANS = 64  # of shapes that came: a plan may hold buffers


class Step(Protocol):
    """One forward pass of the model, handed to its layers as the keyword `vortex_step`."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Stores K and V of the new tokens and attends.

        q [batch, query heads, tokens, dim], k and v [batch, KV heads, tokens, dim], after RoPE
        -> [batch, tokens, query heads, dim]
        """
        ...


def register() -> None:
    """Makes `attn_implementation="vortex"` known to Transformers. May be called again.

    The function writes K and V itself, so the model runs without a cache object (`use_cache=False`) and
    the mask is not built: a name that Transformers has no mask function for gets none.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention_forward)


def attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    vortex_step: Step | None = None,
    **features: Any,
) -> tuple[Tensor, None]:
    """Transformers' signature of an attention function. Raises ValueError for what is not supported."""
    if vortex_step is None:
        raise ValueError(
            "the attention 'vortex' runs inside vortex.engines.transformers.Engine; to run the model alone, "
            "call model.set_attn_implementation('sdpa') first"
        )
    for name, words in (
        ("sliding_window", "a sliding window"),
        ("softcap", "a soft-cap on attention logits"),
        ("s_aux", "attention sinks"),
        ("position_bias", "a position bias"),
    ):
        if features.get(name) is not None:
            raise ValueError(
                f"layer {module.layer_idx} asks for {words} ({name}), "
                "which the embedded engine does not support"
            )
    if attention_mask is not None or dropout:
        raise ValueError("the attention 'vortex' takes neither an attention mask nor dropout")
    if key.shape[-1] != value.shape[-1]:
        raise ValueError(
            f"layer {module.layer_idx}: K has {key.shape[-1]} elements a head and V {value.shape[-1]}; "
            "the embedded engine needs the same number"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return vortex_step.attend(module.layer_idx, query, key, value, scale), None


@dataclass(frozen=True)
class PrefillStep:
    """Tokens `start` to `start + n` of one request, dense and causal, over what the pool already holds.

    slots  int64 [start + n]: pool slots of all tokens so far
    mask   bool [n, start + n], where a prefix is in the pool; None: plain causal
    """

    pool: PagedPool
    slots: Tensor
    start: int
    mask: Tensor | None

    @classmethod
    def of(cls, pool: PagedPool, slots: Tensor, start: int) -> PrefillStep:
        mask = None
        if start:
            position = torch.arange(slots.shape[0], device=slots.device)
            mask = position[start:, None] >= position
        return cls(pool, slots, start, mask)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        new = self.slots[self.start :]
        pool_k, pool_v = self.pool.k[layer], self.pool.v[layer]
        pool_k.index_copy_(0, new, k[0].transpose(0, 1))
        pool_v.index_copy_(0, new, v[0].transpose(0, 1))
        if self.start:
            k = pool_k.index_select(0, self.slots).transpose(0, 1)[None]
            v = pool_v.index_select(0, self.slots).transpose(0, 1)[None]
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=self.mask, is_causal=self.mask is None, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2)


class Attention:
    """One provider with its plans: one for each shape that came."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self._plans: dict[StepShape, Planned] = {}

    def run(self, q: Tensor, pool: PagedPool, layer: int, selection: Selection, batch: Batch,
            scale: float, max_blocks: int) -> Tensor:  # fmt: skip
        """[requests, query heads, dim] -> the same shape. Raises what the provider's plan raises."""
        from vortex.attention.provider import Features, StepShape

        shape = StepShape(
            batch.requests, batch.heads, batch.block_size, batch.page_size, selection.ids.shape[2],
            max_blocks, q.dtype, pool.k.dtype, q.device, fixed_counts=False,
            lists_dense=selection.lists_dense,
        )  # fmt: skip
        plan = self._plans.get(shape)
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = self._plans[shape] = self.provider.plan(shape, Features(), layer)
        return plan.run(q, pool.layers[layer], selection, batch, scale)[0]


@dataclass
class Attended:
    """What one layer attended, kept for measuring recall after the step."""

    layer: int
    q: Tensor
    selection: Selection
    scale: float


@dataclass
class DecodeStep:
    """One new token of every request.

    slots       int64 [requests]: where its K and V go
    every       the selection of all blocks, for dense decoding; None: the flow selects
    shortcut    False: rows whose budget covers everything go the sparse way as well
    max_blocks  blocks of the longest request that may come
    keep        also keep queries and selections, for recall
    """

    pool: PagedPool
    attention: Attention
    batch: Batch
    slots: Tensor
    max_blocks: int
    runner: FlowRunner | None = None
    storage: Storage | None = None
    every: Selection | None = None
    shortcut: bool = True
    keep: bool = False
    selections: int = 0
    counts: list[Tensor] = field(default_factory=list)
    dense: list[Tensor] = field(default_factory=list)
    attended: list[Attended] = field(default_factory=list)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q = q[:, :, 0]
        self.pool.k[layer].index_copy_(0, self.slots, k[:, :, 0])
        self.pool.v[layer].index_copy_(0, self.slots, v[:, :, 0])
        selection = self.every if self.every is not None else self._select(layer, q)
        out = self.attention.run(q, self.pool, layer, selection, self.batch, scale, self.max_blocks)
        # A runner may write into the same buffers in the next layer.
        self.counts.append(selection.counts.clone())
        self.dense.append(selection.dense.clone())
        if self.keep:
            kept = Selection(selection.ids.clone(), self.counts[-1], self.dense[-1], selection.lists_dense)
            self.attended.append(Attended(layer, q.clone(), kept, scale))
        return out[:, None]

    def _select(self, layer: int, q: Tensor) -> Selection:
        assert self.runner is not None and self.storage is not None
        selection = self.runner.select(self.storage, layer, q, self.pool.layers[layer], self.batch)
        self.selections += 1
        if self.shortcut:
            return selection
        if not selection.lists_dense:
            raise ValueError(
                "shortcut=False: this runner does not list the blocks of dense rows (Selection.lists_dense)"
            )
        return Selection(selection.ids, selection.counts, torch.zeros_like(selection.dense))


def every_block(batch: Batch) -> Selection:
    """The selection of all blocks of every request, not listed: rows walk their page tables."""
    blocks = (batch.lengths + batch.block_size - 1) // batch.block_size
    rows = (batch.requests, batch.heads.kv)
    device = batch.lengths.device
    return Selection(
        torch.full((*rows, 1), -1, dtype=torch.int32, device=device),
        blocks[:, None].expand(rows).contiguous(),
        torch.ones(batch.requests, dtype=torch.bool, device=device),
        lists_dense=False,
    )
