"""What a plan is made of: kernels with their passes, selections, and the memory between them. Frozen values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vortex.dsl.axes import Axis

How = Literal["store", "reduce", "scan", "scatter", "fill", "state", "scores", "mask"]


@dataclass(frozen=True)
class Output:
    """What a pass leaves in memory.

    how  store    a value per block of the domain
         reduce   a value per row
         scan     running sums per block
         fill     a constant over all blocks, before the scatter or the scores that `name` says
         scatter  values of a restricted domain at their places among all blocks
         scores   what a selection ranks, over all blocks; -inf where a restricted domain has no member
         mask     1 where a boolean set has a member, what a selection by threshold reads
         state    what the next decode step reads
    """

    node: int
    how: How
    name: str = ""
    fill: float = 0.0


@dataclass(frozen=True)
class Pass:
    """One sweep over the blocks of a domain: all blocks (None), or the members of a set.

    `domain` is -1 for a pass without blocks: values per row alone.
    """

    domain: int | None
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class Kernel:
    """Passes in order. "map": one pass, thread blocks over chunks; "row": one thread block a row."""

    kind: Literal["map", "row"]
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Select:
    """A selection kernel.

    node      the set it makes
    buffer    key of the row of scores (or of a boolean's 0 and 1) that it reads
    final     whether the set is what is attended
    reserves  whether sinks and recent blocks belong to the set
    shares    whether KV heads may share their scores before it
    inner     whether later kernels run over its members, so that it must hold what the flow asked for
    """

    node: int
    buffer: str
    final: bool
    reserves: bool
    shares: bool
    inner: bool = False


Step = Kernel | Select


@dataclass(frozen=True)
class Buffer:
    """Scratch memory between kernels: per block of all blocks ("block"), per member ("member"), or per row."""

    node: int
    how: How
    layout: Literal["block", "member", "row"]
    axes: tuple[Axis, ...]
    dtype: str

    @property
    def key(self) -> str:
        return f"{self.how}_{self.node}"

    @property
    def elements(self) -> int:
        return math.prod(axis.size or 1 for axis in self.axes)


@dataclass(frozen=True)
class Plan:
    """The steps of an indexer, and the scratch memory between them."""

    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]

    def buffer(self, key: str) -> Buffer:
        return next(each for each in self.buffers if each.key == key)

    def kept(self, node: int) -> Buffer:
        """The buffer from which a value per block is read back."""
        return next(
            each for each in self.buffers if each.node == node and each.how in ("store", "scan", "scatter")
        )
