"""Requests that decode together, one token a step: prefill, step, drop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vortex.engines.transformers.allocator import PageRun
from vortex.engines.transformers.attention import DecodeStep, PrefillStep, every_block
from vortex.engines.transformers.counters import Meter
from vortex.engines.transformers.recall import Recall, measure
from vortex.vtensor.batch import Batch

if TYPE_CHECKING:
    from vortex.engines.transformers.engine import Engine


@dataclass
class Request:
    """index: place in the list of prompts; length: tokens whose K and V are in the pool."""

    index: int
    slot: int
    run: PageRun
    prompt: list[int]
    length: int = 0


class Session:
    """The live requests of one call, over the engine's pool.

    requests  in the order of the rows of `logits`
    logits    [rows, vocabulary], dtype of the model: of the newest token of each request
    cached    prompt tokens that were found in the pool, summed over requests

    A context manager: leaving it gives all pages and state slots back.
    """

    def __init__(
        self, engine: Engine, prompts: Sequence[Sequence[int]], new_tokens: int, dense: bool
    ) -> None:
        """Prefills every prompt. new_tokens: tokens that may be generated for each. Raises PoolFull."""
        self.engine = engine
        self.dense = dense
        self.requests: list[Request] = []
        self.meter = Meter(engine.pool.token_bytes, None if dense else engine.entry_bytes)
        self.recalls: list[Recall] = []
        self.steps = 0
        self.cached = 0
        self._last: DecodeStep | None = None
        self._lengths: Tensor
        self._page_table: Tensor
        self._slots: Tensor
        for index, prompt in enumerate(prompts):
            engine.check_prompt(index, prompt, new_tokens)
        try:
            rows = [self._start(index, list(prompt), new_tokens) for index, prompt in enumerate(prompts)]
        except BaseException:
            self.close()
            raise
        self.logits = torch.stack(rows)
        self._lay_out()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.drop(range(len(self.requests)))

    def drop(self, rows: Sequence[int]) -> None:
        """Takes requests out of the batch and gives their pages and slots back. `logits` loses their rows."""
        leaving = set(rows)
        if not leaving:
            return
        for row in leaving:
            self.engine.pool.allocator.release(self.requests[row].run)
            self.engine.free_slots.append(self.requests[row].slot)
        stay = [row for row in range(len(self.requests)) if row not in leaving]
        self.requests = [self.requests[row] for row in stay]
        if self.requests:
            self.logits = self.logits[stay]
            self._lay_out()

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], recall: bool = False) -> Tensor:
        """Feeds one token to each request and returns the new `logits`.

        recall: keep what attention needs to measure recall; `take_recall` then measures it.
        """
        engine, pool = self.engine, self.engine.pool
        if len(tokens) != len(self.requests):
            raise ValueError(f"{len(tokens)} tokens for {len(self.requests)} requests")
        device = self._lengths.device
        position = [request.length for request in self.requests]
        for request in self.requests:
            if request.length >= len(request.run.pages) * pool.page_size:
                raise ValueError(f"request {request.index} has no room for another token: raise new_tokens")
            request.length += 1
        if not self.dense:
            self._summarise(self.requests)
        self._lengths = self._lengths + 1
        batch = Batch(
            self._lengths, self._page_table, self._slots, pool.page_size, engine.block_size, engine.heads
        )
        offset = [request.run.pages[at // pool.page_size] * pool.page_size + at % pool.page_size
                  for request, at in zip(self.requests, position, strict=True)]  # fmt: skip
        step = DecodeStep(
            pool, engine.attention, batch, torch.tensor(offset, device=device), engine.max_blocks,
            runner=engine.runner, storage=engine.storage,
            every=every_block(batch) if self.dense else None,
            shortcut=engine.shortcut, keep=recall,
        )  # fmt: skip
        ids = torch.tensor([tokens, position], device=device)
        self.logits = engine.forward(ids[0, :, None], ids[1, :, None], step)[:, -1]
        self.meter.add(batch, step.counts, step.dense, step.selections)
        self.steps += 1
        self._last = step
        return self.logits

    @property
    def has_recall(self) -> bool:
        """The last step was run with `recall` and is not measured yet."""
        return self._last is not None and bool(self._last.attended)

    @torch.inference_mode()
    def take_recall(self) -> Recall:
        """Measures the step that was run with `recall`; slow, so call it outside what is timed."""
        if self._last is None or not self._last.attended:
            raise ValueError("take_recall: the last step was not run with recall=True")
        result = measure(self.steps - 1, self._last.attended, self.engine.pool, self._last.batch)
        self._last = None
        self.recalls.append(result)
        return result

    @torch.inference_mode()
    def _start(self, index: int, prompt: list[int], new_tokens: int) -> Tensor:
        engine = self.engine
        if not engine.free_slots:
            raise ValueError(
                f"{engine.max_requests} requests are running already: raise max_requests, "
                "or split the prompts"
            )
        run = engine.pool.allocator.acquire(prompt, len(prompt) + new_tokens)
        request = Request(index, engine.free_slots.pop(), run, prompt)
        self.requests.append(request)
        if engine.runner is not None:
            engine.runner.reset_slot(engine.storage, request.slot)
        self.cached += run.cached
        logits = self._prefill(request)
        engine.pool.allocator.remember(run, prompt)
        if not self.dense:
            self._summarise([request])
        return logits

    def _prefill(self, request: Request) -> Tensor:
        engine, pool = self.engine, self.engine.pool
        prompt, pages = request.prompt, request.run.pages
        slots = pool.slots(pages, 0, len(prompt))
        ids = torch.tensor(prompt, device=slots.device)
        position = torch.arange(len(prompt), device=slots.device)
        request.length = request.run.cached
        while request.length < len(prompt):
            start, stop = request.length, min(request.length + engine.prefill_chunk, len(prompt))
            step = PrefillStep.of(pool, slots[:stop], start)
            logits = engine.forward(ids[None, start:stop], position[None, start:stop], step)
            request.length = stop
        return logits[0, -1]

    def _summarise(self, requests: Sequence[Request]) -> None:
        """Writes missing entries of all blocks before the current one; valid ones are left alone."""
        engine, allocator = self.engine, self.engine.pool.allocator
        runner, storage = engine.runner, engine.storage
        assert runner is not None and storage is not None
        stale = [allocator.stale_blocks(request.run, (request.length - 1) // engine.block_size)
                 for request in requests]  # fmt: skip
        # Nothing twice: what requests share was made valid when the second of them started.
        blocks = np.concatenate(stale)
        if blocks.size:
            ids = torch.from_numpy(blocks).to(engine.pool.k.device)
            for layer, pool in enumerate(engine.pool.layers):
                runner.summarise(storage, layer, pool, ids)
            allocator.mark_summarised(blocks)

    def _lay_out(self) -> None:
        """Index tensors that hold until a request leaves."""
        device = self.engine.pool.k.device
        width = max(len(request.run.pages) for request in self.requests)
        table = [request.run.pages + [0] * (width - len(request.run.pages)) for request in self.requests]
        self._page_table = torch.tensor(table, dtype=torch.int32, device=device)
        self._slots = torch.tensor([r.slot for r in self.requests], dtype=torch.int32, device=device)
        self._lengths = torch.tensor([r.length for r in self.requests], dtype=torch.int32, device=device)
