"""What an engine asks of a compiled flow, and what the reference executor and the kernels both give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vortex.vtensor.batch import Batch, Heads
    from vortex.vtensor.pool import KVPool
    from vortex.vtensor.selection import Selection


class Storage(Protocol):
    """Entries and states of all layers: made by `FlowRunner.allocate`, opaque to everyone else."""


class FlowRunner(Protocol):
    """One algorithm bound to one way of running it.

    A runner may also have `entry_bytes`: bytes of the entries of one block of one KV head of one layer that
    `select` reads. Engines then count them.
    """

    block_size: int

    def allocate(
        self,
        *,
        layers: int,
        pool_blocks: int,
        slots: int,
        max_blocks: int,
        heads: Heads,
        device: torch.device,
    ) -> Storage:
        """Memory for the entries of `pool_blocks` blocks and the state of `slots` requests, in every layer.

        max_blocks: blocks of the longest request that may come (state may hold an axis `block`).
        """
        ...

    def reset_slot(self, storage: Storage, slot: int) -> None:
        """A new request starts in this state slot: its state is what the algorithm's defaults say."""
        ...

    def summarise(self, storage: Storage, layer: int, pool: KVPool, block_ids: Tensor) -> None:
        """Writes the entries of pool blocks that just finished.

        block_ids: int64 [m], pool block ids without duplicates.
        """
        ...

    def select(self, storage: Storage, layer: int, q: Tensor, pool: KVPool, batch: Batch) -> Selection:
        """The blocks that every (request, KV head) attends in this step.

        q: [requests, query heads, dim] after RoPE, unscaled. Entries of all finished blocks of the batch
        are written, K and V of the newest token as well. Rows whose budget covers every block are marked
        `dense`; their ids are listed too where `lists_dense` says so, and tests attend those instead.
        """
        ...
