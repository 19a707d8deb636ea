"""Made-up requests over a flow's own kernels: what a step is measured with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from vortex.attention.dense import DenseKernel, dense_kernels
from vortex.attention.measure import Timing, kv_bytes, made_up, time_in_graph
from vortex.attention.provider import Features, StepShape
from vortex.attention.step import DecodeStep, StepOptions
from vortex.codegen.compiled import CompiledFlow

MOST_LAYERS = 12
MEMORY = 8 * 2**30
SLOW_US = 400.0
"""Calls expected to take longer are repeated less often."""


class Rig:
    """Requests of one length, with pools, entries and queries of up to 12 layers; `flow` may be None (dense only).

    shape    requests, heads, types; `max_blocks` decides the kernels, whatever the length
    layers   how many have memory of their own: as `memory` bytes of K and V allow, 12 at most
    """

    def __init__(
        self, flow: CompiledFlow | None, shape: StepShape, length: int, memory: int = MEMORY, seed: int = 0
    ) -> None:
        self.flow, self.length = flow, length
        self.others = set() if flow is None else set(flow.workspaces)
        one = kv_bytes(shape, -(-length // shape.block_size))
        most = MOST_LAYERS if flow is None else min(MOST_LAYERS, flow.program.shape.layers)
        layers = max(1, min(most, memory // max(one, 1)))
        self.shape = replace(shape, width=1)
        self.batch, self.pools, _, self.q = made_up(self.shape, length, 1, layers, seed)
        self.out = torch.empty_like(self.q)
        self.scale = shape.heads.dim**-0.5
        if flow is not None:
            self.storage = flow.allocate(
                layers=layers, pool_blocks=self.batch.page_table.numel() * self.batch.blocks_per_page,
                slots=shape.requests, max_blocks=shape.max_blocks, heads=shape.heads, device=shape.device,
            )  # fmt: skip
            ids = torch.arange(len(self.storage.valid), device=shape.device)
            for layer, pool in enumerate(self.pools):
                flow.summarise(self.storage, layer, pool, ids)
            self.storage.valid.fill_(1)

    def step(self, options: StepOptions) -> DecodeStep:
        """A step over this memory, planned and run once."""
        assert self.flow is not None
        made = DecodeStep(self.flow, self.storage, self.pools, self.batch, self.q.dtype, options)
        if made.needs_update:
            made.update([self.length] * self.shape.requests)
        made.plan()
        return made

    def dense(self, label: str, features: Features | None = None) -> DenseKernel:
        features = features or Features()
        kernel = dense_kernels(self.shape, features)[label](self.shape, features, self.batch, self.scale)
        kernel.update([self.length] * self.shape.requests)
        return kernel

    def time(
        self, call: Callable[[int], object], bytes_read: float, layers: Sequence[int] | None = None
    ) -> Timing:
        """Times `call(layer)`; `bytes_read`, of one call, tells how often it is repeated."""
        layers = list(layers if layers is not None else range(len(self.pools)))
        slow = bytes_read / 4e6 > SLOW_US
        calls = 4 if slow else MOST_LAYERS
        cycled = [layers[number % len(layers)] for number in range(calls)]
        return time_in_graph([partial(call, layer) for layer in cycled], replays=7 if slow else 20)

    def time_step(self, step: DecodeStep, bytes_read: float) -> Timing:
        """One layer of a step, among those that are as most are."""
        layers = [layer for layer, whole in enumerate(step.whole) if not whole] or None
        return self.time(lambda layer: step.run_layer(layer, self.q, self.out), bytes_read, layers)

    def time_dense(self, label: str) -> Timing:
        kernel = self.dense(label)
        size = kv_bytes(self.shape, -(-self.length // self.shape.block_size))
        return self.time(lambda layer: kernel.run(self.q, self.pools[layer], self.batch, self.out), size)

    def forget(self) -> None:
        """Gives the scratch memory that the flow made for this rig back."""
        if self.flow is not None:
            for key in set(self.flow.workspaces) - self.others:
                del self.flow.workspaces[key]
