"""Which tensors a model gives a flow, as data: attention with other kinds of keys needs another table, not code."""

from __future__ import annotations

from dataclasses import dataclass

from vortex.dsl.axes import BLOCK, Axis, TensorType
from vortex.dsl.ir import Shape


@dataclass(frozen=True)
class Input:
    """One named tensor of the model.

    axes   names of its axes in a finished block (a cached input) or of one step (a query), slowest first
    cached whether it lives in the KV pool, and so has a `block` axis in the indexer
    """

    name: str
    axes: tuple[str, ...]
    cached: bool


@dataclass(frozen=True)
class View:
    """The inputs of one kind of attention."""

    inputs: tuple[Input, ...]

    def find(self, name: str) -> Input | None:
        return next((each for each in self.inputs if each.name == name), None)

    def type(self, name: str, function: str, shape: Shape, block_size: int) -> TensorType:
        """Type of an input in the function "cache" or "indexer"."""
        sizes = {"token": block_size, "dim": shape.head_dim, "head": shape.group}
        each = self.find(name)
        assert each is not None
        axes = tuple(Axis(axis, sizes[axis]) for axis in each.axes)
        return TensorType((BLOCK, *axes) if each.cached and function == "indexer" else axes)


PER_HEAD = View((
    Input("k", ("token", "dim"), cached=True),
    Input("v", ("token", "dim"), cached=True),
    Input("q", ("head", "dim"), cached=False),
))  # fmt: skip
"""Keys and values per KV head, as multi-head and grouped-query attention keep them."""
