"""Index sets: which members of an axis are picked, and what restricting an axis to them means.

A reference holds a set along `block` as a boolean over it, and one along another axis as ascending int64 ids
[..., count] filled with -1. Operators that do not say `takes_sets` receive the boolean indicator of those too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from operator import or_ as operator_or
from typing import Any

from vortex.dsl.axes import BLOCK, Axis, Members, TensorType, arranged, computed, resolve_one
from vortex.dsl.ir import Node
from vortex.dsl.ops.support import aligner
from vortex.dsl.policy import Budget
from vortex.dsl.problem import Problem
from vortex.dsl.registry import FUNCTION, Inferred, operator

BLOCK_SET = TensorType((BLOCK,), "bool", Members("block"))
SECOND_INPUT = -1
"""Stands in a rule's result for the number of the node's second input, which only the recorder knows."""


def is_block_set(x: TensorType) -> bool:
    """Whether `x` may stand for a set of blocks: an index set along block, or a boolean over it."""
    return x.dtype == "bool" and x.axes == (BLOCK,)


def _crosses_axis(node: Node, types: tuple[TensorType, ...]) -> tuple[str, ...]:
    return (str(node.attr("dim")),)


def _size_limit(value: object, what: str) -> int | str | None:
    """A set size as an author writes it: nothing (the budget), an integer, or a budget expression."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str) or (isinstance(value, int) and value < 0):
        raise Problem("bad-k", what=what, value=value)
    Budget.parse(value)
    return value


def _over_blocks(x: TensorType, what: str) -> None:
    if x.axis("block") is None:
        raise Problem("not-along-block", what=what, type=x)
    left = tuple(name for name in x.names if name != "block")
    if left:
        shown = repr(left if len(left) > 1 else left[0])
        raise Problem("leftover-axis", what=what, left=", ".join(left), dim=shown, type=x)


def _everywhere(run: Any, x: Any, source: TensorType) -> Any:
    """Scores over the whole block axis: -inf where a restricted axis has no member."""
    subset = source.axis("block").subset  # type: ignore[union-attr]
    x = x.to(run.dtype)
    if subset is None:
        return x
    full = x.new_full((run.blocks,), -math.inf)
    full[run.members(subset)] = x
    return full


def _top_k_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    from vortex.dsl.ops import ranking

    if node.attr("dim") == "block":
        k = node.attr("k")

        def select(run: Any, x: Any) -> Any:
            return ranking.top_k_mask(_everywhere(run, x, types[0]), run.take(k), run.sinks, run.recent)

        return select
    position = types[0].names.index(str(node.attr("dim")))
    count = int(node.attr("k"))  # type: ignore[arg-type]

    def pick(run: Any, x: Any) -> Any:
        return ranking.top_k_along(x.to(run.dtype).movedim(position, -1), count)

    return pick


@operator(reference=_top_k_reference, neutral=-math.inf, crosses=_crosses_axis, takes_sets=False)
def topK(
    x: TensorType,
    *,
    dim: object = None,
    k: int | str | None = None,
    mode: str = "exact",
    recall: float = 0.97,
    seed: int = 0,
) -> Inferred:
    """The `k` members with the largest scores along `dim` (by default `block`), as an index set.

    Along block: `k` is the size of the whole attended set, reserved blocks included; without it the set fills
    the budget. No other axis may remain in `x`. Along another axis `k` is required. A score of -inf or NaN is
    never selected; of equal scores the lower id wins. mode="stochastic" may miss members, but never more than
    1 - `recall` of them; its choice depends on `seed`, layer, KV head and length alone.
    """
    if dim in (None, "block") and x.axis("block") is None:
        raise Problem("not-along-block", what="topK", type=x)
    name = resolve_one(x, "block" if dim is None else dim, "topK")
    if mode not in ("exact", "stochastic"):
        raise Problem("bad-mode", mode=mode)
    if isinstance(recall, bool) or not isinstance(recall, int | float) or not 0 < recall <= 1:
        raise Problem("bad-recall", value=recall)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise Problem(
            "bad-number", what="seed", wanted="a whole number", value=seed, remedy="Write `seed=0`."
        )
    extra: dict[str, Any] = {} if mode == "exact" else {"mode": mode, "recall": float(recall), "seed": seed}
    if name == "block":
        _over_blocks(x, "topK")
        return Inferred(BLOCK_SET, {"dim": name, "k": _size_limit(k, "k"), **extra})
    size = x.axis(name).size  # type: ignore[union-attr]
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= size:  # type: ignore[operator]
        raise Problem("k-required", axis=x.axis(name), k=k)
    return Inferred(TensorType(x.axes, "bool", Members(name, k)), {"dim": name, "k": k})


def _number(value: object, what: str, remedy: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise Problem("bad-number", what=what, wanted="a number", value=value, remedy=remedy)
    return float(value)


def _top_p_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    from vortex.dsl.ops import ranking

    p, limit = float(node.attr("p")), node.attr("max")  # type: ignore[arg-type]

    def select(run: Any, w: Any) -> Any:
        return ranking.top_p_mask(_everywhere(run, w, types[0]), p, run.take(limit), run.sinks, run.recent)

    return select


@operator(reference=_top_p_reference, neutral=-math.inf, crosses=lambda node, types: ("block",))
def topP(w: TensorType, p: float, *, max: int | str | None = None) -> Inferred:
    """The fewest blocks whose non-negative weights reach the share `p` of the row's sum, largest first.

    Reserved blocks are in the set and their weights count. `max` bounds the whole set as `k` does in topK.
    """
    _over_blocks(w, "topP")
    remedy = "Write a share that is known while tracing, e.g. `p=0.9`."
    share = _number(p, "p", remedy)
    if not 0 < share <= 1:
        raise Problem("bad-number", what="p", wanted="above 0 and at most 1", value=p, remedy=remedy)
    return Inferred(BLOCK_SET, {"p": share, "max": _size_limit(max, "max")})


def _threshold_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    from vortex.dsl.ops import ranking

    t, limit = float(node.attr("t")), node.attr("max")  # type: ignore[arg-type]

    def select(run: Any, x: Any) -> Any:
        return ranking.threshold_mask(
            _everywhere(run, x, types[0]), t, run.take(limit), run.sinks, run.recent
        )

    return select


@operator(
    reference=_threshold_reference, neutral=-math.inf, crosses=lambda node, types: ("block",), against="t"
)
def Threshold(x: TensorType, t: float, *, max: int | str | None = None) -> Inferred:
    """The blocks with scores of at least `t`, the largest first where `max` (as `k` in topK) allows fewer.

    `t` is a number or a tensor; with a tensor, one for the row or one for each block, x - t is compared with 0
    and ranked.
    """
    _over_blocks(x, "Threshold")
    remedy = "Write a number or a tensor, e.g. `t=0.5`."
    return Inferred(BLOCK_SET, {"t": _number(t, "t", remedy), "max": _size_limit(max, "max")})


def _count(value: object, what: str) -> int:
    if FUNCTION.get() == "cache":
        raise Problem("blocks-in-cache", what=what)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Problem("bad-size", name="n", value=value, more="")
    return value


def _first_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    return lambda run: run.arange(run.blocks) < int(node.attr("n"))  # type: ignore[arg-type]


@operator(reference=_first_reference)
def First(n: int) -> Inferred:
    """The first `n` blocks of the request, as an index set."""
    return Inferred(BLOCK_SET, {"n": _count(n, "First")})


def _last_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    return lambda run: run.arange(run.blocks) >= run.blocks - int(node.attr("n"))  # type: ignore[arg-type]


@operator(reference=_last_reference)
def Last(n: int) -> Inferred:
    """The last `n` blocks before the current one, as an index set."""
    return Inferred(BLOCK_SET, {"n": _count(n, "Last")})


def _union_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    views = [aligner(each, node.type.axes) for each in types]

    def evaluate(run: Any, *values: Any) -> Any:
        return functools.reduce(operator_or, [view(x) for view, x in zip(views, values, strict=True)])

    return evaluate


@operator(reference=_union_reference, takes_sets=True)
def Union(*sets: TensorType) -> Inferred:
    """The blocks that are in any of the sets."""
    if not sets:
        raise Problem("concat-nothing")
    for each in sets:
        if not is_block_set(each):
            raise Problem("not-a-set", what="Union", type=each)
    return Inferred(BLOCK_SET)


def _gathered(x: TensorType, index: TensorType, name: str, fresh: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Axes of a lookup: `name` gives way to the index's own axes; axes that only the index has come with it."""
    own = tuple(axis for axis in fresh if axis.name == name or axis.name not in x.names)
    at = x.names.index(name)
    axes = (*x.axes[:at], *own, *x.axes[at + 1 :])
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise Problem("repeated-axis", axis=next(each for each in names if names.count(each) > 1))
    return axes if len(own) == 1 and own[0].name == name else arranged(axes)


def _lookup(x: TensorType, index: TensorType, name: str, result: TensorType) -> Callable[..., Any]:
    """Values of `x` at the given positions along `name`; a position outside the axis reads 0."""
    shared = [axis.name for axis in index.axes if axis.name in x.names and axis.name != name]
    rest = [each for each in x.names if each not in shared and each != name]
    own = [axis.name for axis in index.axes if axis.name not in shared]
    x_order = [x.names.index(each) for each in (*shared, *rest, name)]
    index_order = [index.names.index(each) for each in (*shared, *own)]
    made = [*shared, *rest, *own]
    back = [made.index(each) for each in result.names]

    def evaluate(run: Any, values: Any, ids: Any) -> Any:
        values, ids = values.permute(x_order), ids.permute(index_order)
        lead, middle = values.shape[: len(shared)], values.shape[len(shared) : -1]
        tail, size = ids.shape[len(shared) :], values.shape[-1]
        count = math.prod(tail)  # not -1: a row without blocks leaves nothing to infer it from
        flat = ids.reshape(*lead, *[1] * len(middle), count).expand(*lead, *middle, count)
        inside = (flat >= 0) & (flat < size)
        padded = values if size else values.new_zeros((*lead, *middle, 1))
        picked = padded.gather(-1, flat.clamp(0, max(size - 1, 0)))
        picked = picked.masked_fill(~inside, 0)
        return picked.reshape(*lead, *middle, *tail).permute(back)

    return evaluate


def _gather_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    x, index = types
    if node.attr("dim") is None:
        position = x.names.index("block")
        return lambda run, values, ids: values.index_select(position, ids.nonzero().flatten())
    name = str(node.attr("dim"))
    if index.members is not None:
        # Ids of a set stand last; name them like the axis they replace.
        axes = (*index.without([name]).axes, Axis(name, index.members.count))
        index = TensorType(axes, "int32")
    return _lookup(x, index, name, node.type)


def _gather_crosses(node: Node, types: tuple[TensorType, ...]) -> tuple[str, ...]:
    return (str(node.attr("dim") or "block"),)


@operator(reference=_gather_reference, crosses=_gather_crosses, takes_sets=True)
def Gather(x: TensorType, i: TensorType, *, dim: object = None) -> Inferred:
    """`x` at the members of the index set `i`, in ascending order, or at integer positions along `dim`.

    A restricted `block` remembers its ids. Along another axis, places without a member, and integer positions
    outside the axis, read 0.
    """
    if dim is None and is_block_set(i):
        block = x.axis("block")
        if block is None or block.subset is not None:
            raise Problem("gather-restricted" if block else "gather-no-block", type=x)
        axes = tuple(replace(axis, subset=SECOND_INPUT) if axis.name == "block" else axis for axis in x.axes)
        return Inferred(TensorType(axes, computed(x.dtype)), {"dim": None})
    if i.members is not None:
        name, size = i.members.axis, i.members.count
        if x.axis(name) is None or x.axis(name).size != i.axis(name).size:  # type: ignore[union-attr]
            raise Problem("gather-axis", axis=i.axis(name), type=x)
        fresh = tuple(Axis(name, size) if axis.name == name else axis for axis in i.axes)
    else:
        if i.dtype != "int32":
            raise Problem("gather-index", type=i)
        if dim is None:
            raise Problem("gather-dim")
        name = resolve_one(x, dim, "Gather")
        fresh = i.axes
    for axis in fresh:
        if axis.name != name and x.axis(axis.name) not in (None, axis):
            raise Problem("axis-size", axis=axis.name, left=x.axis(axis.name), right=axis)
    return Inferred(TensorType(_gathered(x, i, name, fresh), computed(x.dtype)), {"dim": name})


def _scatter_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    position = types[0].names.index("block")
    subset = types[0].axes[position].subset
    fill = node.attr("fill")

    def evaluate(run: Any, x: Any) -> Any:
        shape = list(x.shape)
        shape[position] = run.blocks
        full = x.new_full(shape, fill)
        return full.index_copy(position, run.members(subset), x)

    return evaluate


@operator(reference=_scatter_reference, crosses=lambda node, types: ("block",))
def Scatter(x: TensorType, fill: float = 0) -> Inferred:
    """A restricted `block` made whole again: `fill` where the index set has no member."""
    block = x.axis("block")
    if block is None or block.subset is None:
        raise Problem("scatter-full", type=x)
    if isinstance(fill, bool) != (x.dtype == "bool") and x.dtype == "bool":
        fill = bool(fill)
    if not isinstance(fill, int | float):
        raise Problem("bad-number", what="fill", wanted="a number", value=fill, remedy="Write `fill=0`.")
    axes = tuple(BLOCK if axis.name == "block" else axis for axis in x.axes)
    return Inferred(TensorType(axes, computed(x.dtype)), {"fill": fill if x.dtype != "fp32" else float(fill)})
