"""Selections that serve several steps and layers: what `reuse_steps` and `reuse_layers` mean.

With `reuse_layers = r`, layer l attends in each step what layer l - l % r, the leader of its group, selected in
that step. With `reuse_steps = r` a leader selects for a row of L tokens when (L - 1) % r == 0, and when it holds
no selection of that row: at its first decode step, and after a step in which the row was attended densely. At the
other steps the row attends the last selection joined with the blocks that are reserved now and the current one.
A block that finished meanwhile is thus attended only when it is reserved, or was current when the selection was
made. Rows that a layer attends densely stay dense; where every layer of a group does so the leader selects nothing
and drops what it held.

A kept selection has at most `max_blocks` ids; under a constant budget at most max(budget, reserved). A joined
one has at most `recent_blocks` + 1 more, so a kernel's tables keep a fixed width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vortex.dsl.ir import Policy, Program
from vortex.vtensor.batch import BatchError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass
class Kept:
    """The last selection of every (slot, layer, KV head).

    chosen  bool [slots, layers, kv heads, max blocks]
    held    bool [slots, layers]: whether a selection is kept there
    """

    chosen: Tensor
    held: Tensor

    @staticmethod
    def allocate(
        policy: Policy, slots: int, layers: int, kv_heads: int, max_blocks: int, device: torch.device
    ) -> Kept | None:
        """None for a flow that selects in every layer and step."""
        import torch

        if policy.reuse_steps == policy.reuse_layers == 1:
            return None
        shape = (slots, layers, kv_heads, max_blocks)
        chosen = torch.zeros(shape, dtype=torch.bool, device=device)
        return Kept(chosen, torch.zeros((slots, layers), dtype=torch.bool, device=device))

    def reset(self, slot: int) -> None:
        self.held[slot] = False

    def drop(self, slot: int, layer: int) -> None:
        self.held[slot, layer] = False

    def holds(self, slot: int, layer: int) -> bool:
        return bool(self.held[slot, layer])

    def put(self, slot: int, layer: int, chosen: Tensor) -> None:
        """chosen: bool [kv heads, blocks], the current block included."""
        self.chosen[slot, layer] = False
        self.chosen[slot, layer, :, : chosen.shape[1]] = chosen
        self.held[slot, layer] = True

    def get(self, slot: int, layer: int, blocks: int) -> Tensor:
        """A copy, bool [kv heads, blocks]; blocks that are younger than the selection are not in it."""
        return self.chosen[slot, layer, :, :blocks].clone()


def leader(policy: Policy, layer: int) -> int:
    """The layer whose selection this layer attends."""
    return layer - layer % policy.reuse_layers


def followers(policy: Policy, layer: int, layers: int) -> range:
    """The layers that attend what this leader selects, itself included."""
    return range(layer, min(layer + policy.reuse_layers, layers))


def refreshes(policy: Policy, tokens: int) -> bool:
    """Whether a row of this length makes a new selection, whatever is held."""
    return (tokens - 1) % policy.reuse_steps == 0


def check_reuse(program: Program) -> None:
    """Raises BatchError for a flow whose state would miss steps."""
    policy = program.policy
    if program.states and (policy.reuse_steps, policy.reuse_layers) != (1, 1):
        names = ", ".join(repr(each.name) for each in program.states)
        raise BatchError(
            f"{program.name} keeps state ({names}), which would miss the steps and layers that reuse a selection: "
            f"reuse_steps = {policy.reuse_steps}, reuse_layers = {policy.reuse_layers}. "
            "Set both to 1, or select without state."
        )
