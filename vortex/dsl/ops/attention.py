"""The operator that ends an indexer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vortex.dsl.axes import TensorType
from vortex.dsl.ir import Node
from vortex.dsl.ops.select import is_block_set
from vortex.dsl.problem import Problem
from vortex.dsl.registry import FUNCTION, Inferred, operator


def _reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    raise RuntimeError("attention runs in a provider, on the set that the indexer returns")


def check_result(i: TensorType, what: str) -> None:
    """Refuses anything but a set of blocks as what is attended."""
    if is_block_set(i):
        return
    if i.members is not None:
        raise Problem("result-axis", what=what, type=i)
    if i.names == ("block",):
        raise Problem("restricted-result" if i.dtype == "bool" else "scores-returned", what=what, type=i)
    raise Problem("not-a-set", what=what, type=i)


@operator(reference=_reference)
def attn(q: TensorType, k: TensorType, v: TensorType, i: TensorType) -> Inferred:
    """Attention of the queries over the blocks in `i`, with the reserved and the current block always attended.

    Softmax(q k^T * scale) v over the attended tokens. `q`, `k`, `v` are q, c["k"] and c["v"] as they came.
    """
    if FUNCTION.get() == "cache":
        raise Problem("blocks-in-cache", what="attn")
    check_result(i, "attn")
    return Inferred(q.value(), {})
