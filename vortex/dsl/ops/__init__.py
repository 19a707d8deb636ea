"""The operators, a family a file. Importing this package fills the registry."""

from __future__ import annotations

from typing import Any

from vortex.dsl.ops import (
    attention,
    elementwise,
    inputs,
    matmul,
    reduce,
    row,
    select,
    shape,
)

__all__ = ["Positions", "attention", "elementwise", "inputs", "matmul", "reduce", "row", "select", "shape"]


class Positions:
    """Numbers of the blocks: `.index` counts from 0 at the start of the request, `.from_end` from 0 at the last
    finished block. Both are int32 over `block`."""

    @property
    def index(self) -> Any:
        return inputs.Position(of="index")

    @property
    def from_end(self) -> Any:
        return inputs.Position(of="from_end")
