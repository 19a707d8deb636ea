"""Launches what lets a selection serve several steps (`reuse_steps`, `reuse_layers`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vortex.codegen.storage import DeviceStorage, SetMemory, Workspace
from vortex.codegen.templates import load_template
from vortex.dsl.ir import Program
from vortex.vtensor.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor


def plan_reuse(
    program: Program, storage: DeviceStorage, batch: Batch, space: Workspace, skipping: Tensor
) -> None:
    """Lengths of the rows that select in this step, by leader layer; skipping: `CompiledFlow.skipping`."""
    assert storage.kept is not None and space.active is not None
    policy, layers = program.policy, program.shape.layers
    leaders = -(-layers // policy.reuse_layers)
    load_template("reuse.py.jinja").plan_reuse[(batch.requests, leaders)](
        batch.lengths, batch.slots, batch.requests, space.dense, skipping, storage.kept.held, space.active,
        space.active_finished, LAYERS=layers, REUSE_LAYERS=policy.reuse_layers, REUSE_STEPS=policy.reuse_steps,
        BLOCK_SIZE=policy.block_size, num_warps=1,
    )  # fmt: skip


def keep_rows(
    program: Program, storage: DeviceStorage, layer: int, batch: Batch, space: Workspace, made: SetMemory
) -> None:
    """Keeps the rows of `made` that were selected in this step, and brings back the others."""
    kept = storage.kept
    assert kept is not None and space.active is not None
    policy, heads = program.policy, storage.heads.kv
    load_template("reuse.py.jinja").keep_rows[(heads, batch.requests)](
        batch.lengths, batch.slots, space.active[layer], kept.held, kept.ids, kept.counts,
        made.out.ids, made.out.counts, layer,
        HEADS=heads, LAYERS=program.shape.layers, WIDTH=made.width, FRAME=1 << (made.width - 1).bit_length(),
        BLOCK_SIZE=policy.block_size, SINKS=policy.sink_blocks, RECENT=policy.recent_blocks, num_warps=4,
    )  # fmt: skip
