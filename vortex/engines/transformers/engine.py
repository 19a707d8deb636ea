"""The embedded engine: load a model, decode batches of prompts with a flow."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vortex.dsl.ir import Program
from vortex.engines.transformers.attention import Attention, Step
from vortex.engines.transformers.compare import Replay, replay
from vortex.engines.transformers.demo import ModelError, Progress
from vortex.engines.transformers.flow import Flow, entry_bytes, runner_of
from vortex.engines.transformers.generate import OnToken, Output, generate
from vortex.engines.transformers.model import LoadedModel, load
from vortex.engines.transformers.pool import PagedPool
from vortex.engines.transformers.sampling import Sampling
from vortex.engines.transformers.session import Session
from vortex.vtensor.runner import Storage

if TYPE_CHECKING:
    from vortex.attention.provider import Provider

Prompt = str | Sequence[int]


class Engine:
    """A model, a flow and a paged pool.

    model         a local folder, a model that `load` or `adopt` gave, or None for the demo model
    flow          an algorithm file, the name of a shipped one, a class, a program, or a runner; may be None for an
                  engine that is dense. A file or class is traced for this model, in this process
    settings      hyper-parameters of a file or class, {"budget": 64}
    attention     what attends the selection; by default `default_attention`
    page_size     tokens of a page, a multiple of the runner's block size; by default 16 or one block
    pool_tokens   tokens whose K and V fit, rounded up to pages
    max_requests  requests that decode together at most
    dtype, device as in `load`; only for a model that is loaded here
    dense         decode without the flow, unless a call says otherwise
    shortcut      False: rows that the runner marks dense attend the blocks it lists all the same (a runner
                  with a shortcut of its own needs it off as well, or it lists without selecting)
    prefill_chunk tokens of a prompt that run through the model at once
    progress      called with a line when loading takes long

    Raises ModelError, FlowError for a flow with errors, and ValueError for what does not fit together.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel | None = None,
        flow: Flow | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        attention: Provider | None = None,
        page_size: int | None = None,
        pool_tokens: int = 16384,
        max_requests: int = 16,
        dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
        dense: bool = False,
        shortcut: bool = True,
        prefill_chunk: int = 2048,
        progress: Progress | None = None,
    ) -> None:
        if flow is None and not dense:
            raise ValueError("engine: without a flow only dense decoding is possible: pass dense=True")
        for name, value in (("pool_tokens", pool_tokens), ("max_requests", max_requests),
                            ("prefill_chunk", prefill_chunk)):  # fmt: skip
            if value < 1:
                raise ValueError(f"engine: {name} is positive, got {value}")
        self.loaded = model if isinstance(model, LoadedModel) else load(
            model, dtype=dtype, device=device, progress=progress)  # fmt: skip
        runner = None if flow is None else runner_of(flow, self.loaded, settings)
        self.block_size = runner.block_size if runner is not None else page_size or 16
        page_size = page_size or max(16, self.block_size)
        self.heads = self.loaded.heads
        self.runner = runner
        self.dense = dense
        self.shortcut = shortcut
        self.max_requests = max_requests
        self.prefill_chunk = prefill_chunk
        self.pool = PagedPool(
            layers=self.loaded.layers, tokens=pool_tokens, page_size=page_size, block_size=self.block_size,
            heads=self.heads, dtype=self.loaded.dtype, device=self.loaded.device,
        )  # fmt: skip
        self.context = min(self.loaded.context, self.pool.allocator.capacity * page_size)
        self.max_blocks = -(-self.context // self.block_size)
        self.free_slots = deque(range(max_requests))
        self.attention = Attention(attention or default_attention(self.loaded.device))
        self.storage: Storage | None = None
        if runner is not None:
            self.storage = runner.allocate(
                layers=self.loaded.layers, pool_blocks=self.pool.pool_blocks, slots=max_requests,
                max_blocks=self.max_blocks, heads=self.heads, device=self.loaded.device,
            )  # fmt: skip

    @property
    def entry_bytes(self) -> int | None:
        """Bytes of the entries of one block of one KV head that selecting reads, None where nobody says."""
        program = getattr(self.runner, "program", None)
        if isinstance(program, Program):
            return entry_bytes(program, self.loaded.dtype.itemsize)
        return getattr(self.runner, "entry_bytes", None)

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int = 128,
        *,
        sampling: Sampling | None = None,
        chat: bool = False,
        stop_tokens: Sequence[int] | None = None,
        stop_strings: Sequence[str] = (),
        on_token: OnToken | None = None,
        recall_every: int = 0,
        dense: bool | None = None,
    ) -> Output:
        """Continues every prompt, all as one batch.

        prompts       texts or lists of token ids
        chat          a text is a user's message, put into the model's chat template
        stop_tokens   ids that end a text; by default the model's own, () for none
        stop_strings  a text ends before the first of these
        on_token      called with (request, token, text that became certain) for each token
        recall_every  measure the recall of attention mass each so many decode steps; 0: never
        dense         decode without the flow; by default as the engine was made

        Raises PoolFull before anything is generated, ValueError for a prompt that is empty or too long.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: at least 1, got {max_new_tokens}")
        if not prompts or isinstance(prompts, str):
            raise ValueError("prompts: a list with at least one prompt is expected")
        tokens = [self.loaded.encode(prompt, chat) if isinstance(prompt, str) else list(prompt)
                  for prompt in prompts]  # fmt: skip
        return generate(
            self, tokens, max_new_tokens, sampling or Sampling(),
            self.loaded.stop if stop_tokens is None else tuple(stop_tokens), stop_strings, on_token,
            recall_every, self.dense if dense is None else dense,
        )  # fmt: skip

    def replay(
        self, prompt: Prompt, tokens: Sequence[int], *, recall_every: int = 1, dense: bool | None = None
    ) -> Replay:
        """Feeds a prompt and then the given tokens, one a step, whatever would have been chosen.

        Two flows on the same tokens compare; on their own continuations they read different texts after the first
        difference. recall_every and dense as in `generate`. The first step follows the prefill, which is dense.
        """
        ids = self.loaded.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return replay(
            self, ids, [int(each) for each in tokens], recall_every, self.dense if dense is None else dense
        )

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int, dense: bool | None = None) -> Session:
        """Prefills token lists for step-by-step decoding: `with engine.open(...) as session`.

        new_tokens: how often `Session.step` may be called.
        """
        dense = self.dense if dense is None else dense
        if not dense and self.runner is None:
            raise ValueError("engine: it was made without a flow, so it can only decode with dense=True")
        return Session(self, prompts, new_tokens, dense)

    def forward(self, ids: Tensor, position: Tensor, step: Step) -> Tensor:
        """Logits of the last token, [batch, 1, vocabulary]; ids and position int64 [batch, tokens]."""
        return self.loaded.model(
            input_ids=ids, position_ids=position, use_cache=False, logits_to_keep=1, vortex_step=step
        ).logits

    def check_prompt(self, index: int, prompt: Sequence[int], new_tokens: int) -> None:
        """Raises ValueError for a prompt that cannot be run."""
        if not prompt:
            raise ValueError(f"prompt {index} is empty: at least one token is needed")
        vocabulary = self.loaded.model.config.get_text_config().vocab_size
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise ValueError(f"prompt {index}: token ids run from 0 to {vocabulary - 1}")
        if len(prompt) + new_tokens > self.loaded.context:
            raise ValueError(
                f"prompt {index} has {len(prompt)} tokens, {new_tokens} more would pass the model's context "
                f"of {self.loaded.context}: shorten it or lower max_new_tokens"
            )


def default_attention(device: torch.device) -> Provider:
    """Plain torch on a CPU; on a GPU the provider that is measured to be fastest."""
    if device.type == "cuda":
        from vortex.attention.auto import AutoProvider

        return AutoProvider()
    from vortex.attention.reference import ReferenceProvider

    return ReferenceProvider()


__all__ = ["Engine", "ModelError", "Output", "Prompt", "Sampling", "Session"]
