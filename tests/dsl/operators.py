"""Applies one operator of the registry to tensors, without a flow around it."""

from __future__ import annotations

from typing import Any

import torch

import vortex.dsl.ops  # noqa: F401  (fills the registry)
from vortex.dsl.axes import BLOCK, Axis, TensorType, computed
from vortex.dsl.ir import Node
from vortex.dsl.registry import FUNCTION, OPERATORS
from vortex.dsl.trace import fill_subset
from vortex.vtensor.evaluate import Run

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


def shape(text: str, dtype: str = "fp32") -> TensorType:
    """A type from its axes: "block token=3 dim=4"."""
    pairs = [word.partition("=") for word in text.split()]
    return TensorType(tuple(Axis(name, int(size)) if size else BLOCK for name, _, size in pairs), dtype)


def sizes(x: TensorType, blocks: int) -> list[int]:
    return [axis.size if axis.size is not None else blocks for axis in x.axes]


def values(
    x: TensorType, blocks: int, seed: int, special: bool = False, precision: str = "fp32"
) -> torch.Tensor:
    """Random values of a type; `special` strews NaN, infinities and zeros of both signs in."""
    random = torch.Generator().manual_seed(seed)
    dims = sizes(x, blocks)
    if x.dtype == "bool":
        return torch.rand(dims, generator=random) < 0.5
    if x.dtype == "int32":
        return torch.randint(-4, 5, dims, generator=random)
    made = torch.randn(dims, generator=random).to(torch.float32).to(DTYPES[precision])
    if special:
        odd = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0], dtype=made.dtype)
        where = torch.rand(dims, generator=random) < 0.5
        made = torch.where(where, odd[torch.randint(0, 6, dims, generator=random)], made)
    return made


def node_of(
    op: str, types: list[TensorType], args: tuple[Any, ...] = (), function: str = "indexer", **attrs: Any
) -> Node:
    token = FUNCTION.set(function)
    try:
        inferred = OPERATORS[op].rule(*types, *args, **attrs)
    finally:
        FUNCTION.reset(token)
    inputs = tuple(range(len(types)))
    return Node(op, inputs, tuple(inferred.attrs.items()), fill_subset(inferred.type, inputs))


def run_of(blocks: int, precision: str = "fp32", sinks: int = 0, recent: int = 0, take: int = 3) -> Run:
    return Run({}, lanes=1, blocks=blocks, sinks=sinks, recent=recent, take=lambda k: take if k is None else int(k),
               dtype=DTYPES[precision], device=torch.device("cpu"))  # fmt: skip


def evaluate(node: Node, types: list[TensorType], tensors: list[torch.Tensor], run: Run) -> torch.Tensor:
    run.values, run.varies = list(tensors), [False] * len(tensors)
    return OPERATORS[node.op].reference(node, tuple(types))(run, *tensors)


def ids(members: torch.Tensor) -> list[int]:
    """Ascending ids of a set of blocks, which a reference holds as a boolean over them."""
    assert members.dtype == torch.bool
    return members.nonzero().flatten().tolist()


def mask(blocks: int, *members: int) -> torch.Tensor:
    """The set of blocks that holds these."""
    held = torch.zeros(blocks, dtype=torch.bool)
    held[list(members)] = True
    return held


def dtype_of(x: TensorType, precision: str) -> torch.dtype:
    return {"bool": torch.bool, "int32": torch.int64}.get(computed(x.dtype), DTYPES[precision])
