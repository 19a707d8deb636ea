"""The attention backend: SGLang's own prefill, and decode steps that attend what a flow selects."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch import Tensor

from vortex.attention.source import power_of_two
from vortex.attention.step import DecodeStep, StepOptions
from vortex.engines.sglang import compat, hooks
from vortex.engines.sglang.counters import Counters
from vortex.engines.sglang.errors import StartError
from vortex.engines.sglang.layers import attention_layers, key_value_pools, logit_scale, refuse_arguments
from vortex.engines.sglang.pages import Pages, snapshot
from vortex.engines.sglang.rank import rank_of, shared_runner
from vortex.engines.sglang.settings import NAME, settings
from vortex.engines.sglang.slots import Slots
from vortex.vtensor.batch import Batch, Heads

logger = logging.getLogger(__name__)

PREFILL_FACTS = (
    "needs_cpu_seq_lens", "extend_dummy_seqs_capped_by_req_pool", "prefill_cuda_graph_max_batch_size",
    "prefill_cuda_graph_default_max_seq_len", "supports_prefill_cuda_graph_max_context_size",
    "prefer_eager_mixed_prefill_under_dp_attention", "skips_prefill_metadata_on_idle_dp_rank",
)  # fmt: skip
"""What SGLang asks a backend about its prefill; 0.5.16 knows the first alone."""

MEASURED_REQUESTS = 16
"""Requests of the step that `dense_below = "auto"` is measured with, before graphs are captured."""


class VortexBackend(AttentionBackend):
    """Decode through a flow, everything else through SGLang's own backend.

    runner  SGLang's ModelRunner: the model is loaded and its memory pools exist

    A decode step is `init_forward_metadata_out_graph` (tables and lengths are copied, on the host's command),
    `init_forward_metadata_in_graph` (the step is planned, finished blocks are summarised) and `forward_decode` for each
    layer; the latter two are recorded in a CUDA graph and not entered again.
    """

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self.device = torch.device(runner.device)
        on_gpu = self.device.type == "cuda"
        self.prefill = self._prefill(runner, on_gpu)
        self.needs_cpu_seq_lens = False  # of decode steps: lengths are read on the device
        for name in PREFILL_FACTS:
            if hasattr(self.prefill, name):
                setattr(self, name, getattr(self.prefill, name))
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool

        rank = rank_of(runner.model_config)
        self.heads: Heads = rank.heads
        config = settings(runner.model_config.hf_config)
        self.flow = shared_runner(config, rank, runner.kv_cache_dtype, on_gpu)
        self.page_size, self.block_size = runner.page_size, self.flow.block_size
        if self.page_size % self.block_size:
            sizes = {"page_size": self.page_size, "block_size": self.block_size, "example": self.block_size}
            raise StartError("page-size", **sizes)
        layers = attention_layers(runner.model)
        self.scale = logit_scale(layers)
        self.pools = key_value_pools(self.token_to_kv_pool, layers, self.page_size)
        self.q_dtype = runner.dtype
        self.max_tokens = min(runner.model_config.context_len, runner.max_total_num_tokens)
        self._allocate()
        self.pages = Pages(self.storage.valid, self.block_size)
        self.pages.follow(runner.token_to_kv_pool_allocator)
        self.slots = Slots(self.flow, self.storage, self.device)
        if self.slots.needed:
            self.slots.follow(self.req_to_token_pool)
        arguments = compat.resolved(runner.server_args)
        self.counters = Counters(
            len(layers), 2 * self.heads.dim * self.pools[0].dtype.itemsize, self.device,
            every=max(arguments.decode_log_interval, 1), rank=rank.rank, metrics=arguments.enable_metrics,
        )  # fmt: skip
        self.steps: dict[int, DecodeStep] = {}
        self.dense_below: int | None = None
        self.current: DecodeStep | None = None
        hooks.live.append(self)
        logger.info("vortex: %s", self.summary(config))
        if self.flow.program.policy.dense_below == "auto":
            self.step(min(MEASURED_REQUESTS, self.max_requests))

    def _prefill(self, runner: Any, on_gpu: bool) -> Any:
        """SGLang's backend for prompts; None where it was chosen apart and is called by SGLang itself."""
        if compat.backends(runner.server_args)[0] != NAME:
            return None
        return ATTENTION_BACKENDS["flashinfer" if on_gpu else "torch_native"](runner)

    def _allocate(self) -> None:
        """Entries by block, state by row of SGLang's table, and the static tables that captured graphs read."""
        self.max_requests, longest = self.req_to_token_pool.req_to_token.shape
        self.storage = self.flow.allocate(
            layers=len(self.pools), pool_blocks=self.pools[0].tensors["k"].shape[0] // self.block_size,
            slots=self.max_requests, max_blocks=-(-longest // self.block_size), heads=self.heads,
            device=self.device,
        )  # fmt: skip
        options: dict[str, Any] = {"dtype": torch.int32, "device": self.device}
        self.lengths = torch.zeros(self.max_requests, **options)
        self.rows = torch.zeros(self.max_requests, **options)
        self.page_table = torch.zeros(self.max_requests, -(-longest // self.page_size), **options)

    def summary(self, config: Any) -> str:
        """One line: what decodes here."""
        policy = self.flow.program.policy
        mib = self.storage.bytes() / 2**20
        return (
            f"{self.flow.program.name} from {config.target}, budget {policy.budget} blocks of {self.block_size}, "
            f"{self.heads.kv} KV heads x {len(self.pools)} layers, entries and state {mib:.1f} MiB"
        )

    # Decode

    def step(self, requests: int) -> DecodeStep:
        """The decode step for this many requests, padded ones included."""
        if requests not in self.steps:
            batch = Batch(
                self.lengths[:requests], self.page_table[:requests], self.rows[:requests], self.page_size,
                self.block_size, self.heads,
            )  # fmt: skip
            made = DecodeStep(self.flow, self.storage, self.pools, batch, self.q_dtype, self._options())
            if not self.steps:
                logger.info("vortex: %s", describe(made))
            self.dense_below = made.dense_below
            self.steps[requests] = made
        return self.steps[requests]

    def _options(self) -> StepOptions:
        provider = None
        if self.device.type == "cuda":
            from vortex.attention.triton_split import TritonProvider

            provider = TritonProvider()
        return StepOptions(
            provider, dense_below=self.dense_below, max_tokens=self.max_tokens, scale=self.scale,
            totals=self.counters.totals, say=logger.info,
        )  # fmt: skip

    def _decodes(self, forward_batch: Any) -> bool:
        return forward_batch.forward_mode.is_decode_or_idle()

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        self.pages.apply()
        self.slots.apply()
        if not self._decodes(forward_batch):
            self.prefill.init_forward_metadata_out_graph(forward_batch, in_capture=in_capture)
            return
        if forward_batch.batch_size:
            self._begin(forward_batch, forward_batch.batch_size)
            if not in_capture:
                self.counters.step()

    def _begin(self, forward_batch: Any, size: int) -> None:
        """Chooses the step for `size` requests, and copies what it reads; more than the batch has are padded."""
        requests = forward_batch.batch_size
        rows, seq_lens = forward_batch.req_pool_indices[:requests], forward_batch.seq_lens[:requests]
        if size > requests:
            rows, seq_lens = (
                torch.nn.functional.pad(each, (0, size - requests)) for each in (rows, seq_lens)
            )
        self.current = step = self.step(size)
        snapshot(self.req_to_token_pool.req_to_token, rows, seq_lens, step.batch, self.storage.valid)

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        if not self._decodes(forward_batch):
            self.prefill.init_forward_metadata_in_graph(forward_batch)
        elif forward_batch.batch_size:
            assert self.current is not None
            self.current.plan()

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self.pages.apply()
        self.slots.apply()
        if not self._decodes(forward_batch):
            self.prefill.init_forward_metadata(forward_batch)
        elif forward_batch.batch_size:
            # Outside of graphs any number of requests may come: steps, with their memory, are for powers of two.
            self._begin(forward_batch, min(power_of_two(forward_batch.batch_size), self.max_requests))
            self.counters.step()
            self.init_forward_metadata_in_graph(forward_batch)

    def forward_decode(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: Any, forward_batch: Any,
        save_kv_cache: bool = True, **arguments: Any,
    ) -> Tensor:  # fmt: skip
        """q [requests, query heads * dim] -> the same shape, its dtype. K and V of the new tokens are stored first."""
        refuse_arguments(layer.layer_id, arguments)
        if save_kv_cache and k is not None:
            self.token_to_kv_pool.set_kv_buffer(
                layer, KVWriteLoc(forward_batch.out_cache_loc), k, v, layer.k_scale, layer.v_scale
            )
        assert self.current is not None
        q = q.view(-1, self.heads.query, self.heads.dim)
        requests, size = q.shape[0], self.current.batch.requests
        if size > requests:
            q = torch.nn.functional.pad(q, (0, 0, 0, 0, 0, size - requests))
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self.current.run(layer.layer_id, q, out)
        return out[:requests].view(requests, self.heads.query * self.heads.dim)

    # Graphs

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        if max_bs > self.max_requests:
            raise StartError("graph-size", asked=max_bs, slots=self.max_requests - 1)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Padded slots are row 0 of SGLang's table, whatever their length."""
        return 1

    # Prefill

    def forward_extend(self, *args: Any, **named: Any) -> Tensor:
        return self.prefill.forward_extend(*args, **named)

    @property
    def forward_metadata(self) -> Any:
        return self.prefill.forward_metadata if self.prefill is not None else None

    @forward_metadata.setter
    def forward_metadata(self, value: Any) -> None:
        if self.prefill is not None:
            self.prefill.forward_metadata = value

    def support_triton(self) -> bool:
        return self.prefill is None or self.prefill.support_triton()

    def on_after_cuda_graph_warmup(self) -> None:
        if self.prefill is not None:
            self.prefill.on_after_cuda_graph_warmup()


def describe(step: DecodeStep) -> str:
    """What a step was planned to do."""
    whole = [layer for layer, each in enumerate(step.whole) if each]
    reasons: Sequence[str] = sorted({plan.reason for plan in step.plans.values()})
    dense = f"dense below {step.dense_below} tokens ({step.dense_reason})"
    if len(whole) == len(step.whole):
        return f"every layer attends everything ({step.dense_label or 'reference'}); {dense}"
    return f"dense layers {whole or 'none'}; {dense}; {'; '.join(reasons) or 'reference'}"
