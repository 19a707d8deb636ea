"""Operators that only rearrange: transpose, slice, concatenate, split, merge, rename."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vortex.dsl.axes import (
    Axis,
    TensorType,
    distinct,
    fresh_name,
    promote,
    resize,
    resolve,
    resolve_one,
    unite,
)
from vortex.dsl.ir import Node
from vortex.dsl.ops.support import aligner, positions
from vortex.dsl.problem import Problem
from vortex.dsl.registry import Inferred, Pads, operator


def _keep_pads(node: Node, types: tuple[TensorType, ...], operands: tuple[Pads, ...]) -> Pads:
    return {axis: operands[0].get(axis) for axis in node.type.names}


def _kept(x: TensorType, axes: tuple[Axis, ...]) -> TensorType:
    """The type over other axes; an index set that is rearranged counts as its boolean indicator."""
    return TensorType(axes, x.dtype)


def _permute(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    order = positions(types[0], node.type.names)
    return lambda run, x: x.permute(order)


@operator(reference=_permute, pads=_keep_pads)
def Transpose(x: TensorType, *axes: str) -> Inferred:
    """`x` with its axes in the given order of names; without names the last two are swapped (also `x.T`)."""
    if not axes:
        if len(x.axes) < 2:
            raise Problem("transpose-rank", type=x)
        axes = (*x.names[:-2], x.names[-1], x.names[-2])
    names = resolve(x, axes)
    # Two positions in the order they have are torch's pair to be swapped, not an order.
    pair = names == x.names and all(isinstance(each, int) for each in axes)
    if len(names) != len(x.axes) or pair:
        raise Problem("transpose-axes", given=", ".join(str(each) for each in axes), type=x)
    return Inferred(_kept(x, tuple(x.axes[x.names.index(name)] for name in names)), {"axes": names})


Index = int | tuple[int, int, int] | None

INDEX_REMEDY = "Use an integer or a slice with a positive step; for a tensor of positions use Gather."


def normal_index(x: TensorType, index: object) -> tuple[Index, ...]:
    """A Python subscript as one entry per named axis: None (all), a position, or (start, stop, step)."""
    given = index if isinstance(index, tuple) else (index,)
    if any(each is Ellipsis for each in given):
        at = [each is Ellipsis for each in given].index(True)
        missing = len(x.axes) + 1 - (len(given) - 1)
        given = (*given[:at], *([slice(None)] * missing), *given[at + 1 :])
    if len(given) > len(x.axes) + 1:
        raise Problem("index-rank", type=x, count=len(given))
    if given and not _everything(given[0]):
        raise Problem("index-request", type=x)
    given = (*given[1:], *([slice(None)] * (len(x.axes) + 1 - len(given))))
    return tuple(_normal_one(axis, each) for axis, each in zip(x.axes, given, strict=True))


def _everything(index: object) -> bool:
    return isinstance(index, slice) and index == slice(None)


def _as_written(index: slice) -> str:
    start, stop, step = ("" if each is None else repr(each) for each in (index.start, index.stop, index.step))
    return f"{start}:{stop}" + (f":{step}" if step else "")


def _normal_one(axis: Axis, index: object) -> Index:
    if _everything(index):
        return None
    if index is None:
        raise Problem("bad-index", index=index, axis=axis.name,
                      remedy="Take it out: operands align by axis name, without axes of size 1.")  # fmt: skip
    if axis.size is None:
        raise Problem(
            "slice-block", axis=axis.name, remedy="Use First(n), Last(n) or `Gather(x, i)` with an index set."
        )
    if isinstance(index, slice):
        try:
            start, stop, step = index.indices(axis.size)
        except (TypeError, ValueError):
            raise Problem(
                "bad-index", index=_as_written(index), axis=axis.name, remedy=INDEX_REMEDY
            ) from None
        if step < 1:
            raise Problem("bad-index", index=_as_written(index), axis=axis.name, remedy=INDEX_REMEDY)
        if start >= stop:
            raise Problem("empty-slice", index=_as_written(index), axis=axis)
        return (start, stop, step)
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise Problem("bad-index", index=repr(index), axis=axis.name, remedy=INDEX_REMEDY)
    position = index.__index__()
    if not -axis.size <= position < axis.size:
        raise Problem("index-range", index=position, axis=axis, last=axis.size - 1)
    return position % axis.size


def _slice_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    index = tuple(
        slice(None) if each is None else slice(*each) if isinstance(each, tuple) else each
        for each in node.attr("index")  # type: ignore[union-attr]
    )
    return lambda run, x: x[index]


def _sliced_axes(node: Node, types: tuple[TensorType, ...]) -> tuple[str, ...]:
    index = node.attr("index")
    return tuple(axis.name for axis, each in zip(types[0].axes, index, strict=True) if each is not None)  # type: ignore[arg-type]


def _slice_pads(node: Node, types: tuple[TensorType, ...], operands: tuple[Pads, ...]) -> Pads:
    moved = _sliced_axes(node, types)
    return {axis: operands[0].get(axis) for axis in node.type.names if axis not in moved}


@operator(reference=_slice_reference, pads=_slice_pads, crosses=_sliced_axes, public=False)
def Slice(x: TensorType, *, index: tuple[Index, ...]) -> Inferred:
    """`x[:, …]`: positions remove their axis, slices shorten it; every axis but `block`."""
    axes = []
    for axis, each in zip(x.axes, index, strict=True):
        if each is None:
            axes.append(axis)
        elif isinstance(each, tuple):
            axes.append(resize(axis, len(range(*each))))
    return Inferred(_kept(x, tuple(axes)), {"index": index})


def _concat_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    import torch

    along = node.type.names.index(str(node.attr("dim")))

    def one(source: TensorType) -> Callable[[Any, list[int]], Any]:
        axes = tuple(source.axis(axis.name) or axis for axis in node.type.axes)
        view = aligner(source, axes)

        def widen(x: Any, sizes: list[int]) -> Any:
            x = view(x)
            x = x.reshape([1] * (len(axes) - x.ndim) + list(x.shape))
            wanted = [x.shape[at] if at == along else sizes[at] for at in range(len(axes))]
            return x.expand(wanted)

        return widen

    wideners = [one(each) for each in types]

    def evaluate(run: Any, *values: Any) -> Any:
        sizes = [run.size(axis) for axis in node.type.axes]
        dtype = run.torch_dtype(node.type.dtype)
        return torch.cat(
            [widen(x, sizes).to(dtype) for widen, x in zip(wideners, values, strict=True)], along
        )

    return evaluate


@operator(reference=_concat_reference, crosses=lambda node, types: (str(node.attr("dim")),))
def Concat(*xs: TensorType, dim: object) -> Inferred:
    """Operands one after the other along `dim` (any axis but `block`); other axes align by name."""
    if not xs:
        raise Problem("concat-nothing")
    name = resolve_one(xs[0], dim, "Concat")
    for each in xs:
        if each.axis(name) is None:
            raise Problem("no-axis", axis=name, type=each)
    if name == "block":
        remedy = "Join sets of blocks with `Union(a, b)`, and scores with `Maximum(a, b)` or `a + b`."
        raise Problem("slice-block", axis="block", remedy=remedy)
    others = unite([each.without([name]) for each in xs])
    total = sum(each.axis(name).size for each in xs)  # type: ignore[misc,union-attr]
    first = xs[0]
    order = list(first.axes) + [axis for axis in others if axis.name not in first.names]
    axes = tuple(Axis(name, total) if axis.name == name else axis for axis in order)
    return Inferred(
        TensorType(axes, xs[0].dtype if len({x.dtype for x in xs}) == 1 else promote(*xs)), {"dim": name}
    )


def _split_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    return lambda run, x: x.reshape([run.size(axis) for axis in node.type.axes])


@operator(reference=_split_reference, crosses=lambda node, types: (str(node.attr("axis")),))
def Split(x: TensorType, axis: object, /, **sizes: int) -> Inferred:
    """One axis as several, slowest first: `Split(x, "token", sub=4, token=16)`; the sizes multiply to the axis."""
    name = resolve_one(x, axis, "Split")
    old = x.axis(name)
    if name == "block":
        remedy = "Split token for parts of a block; neighbouring blocks meet in `Conv1d` and `MaxPool1d`."
        raise Problem("slice-block", axis="block", remedy=remedy)
    for each, size in sizes.items():
        if fresh_name(each) == "axis":
            raise Problem("axis-name", name=each)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise Problem("bad-size", name=each, value=size, more="; every size of a Split is written out")
    if not sizes or math.prod(sizes.values()) != old.size:  # type: ignore[union-attr]
        shown = " * ".join(f"{each}={size}" for each, size in sizes.items()) or "nothing"
        raise Problem("split-size", axis=old, sizes=shown)
    at = x.names.index(name)
    fresh = tuple(Axis(each, size) for each, size in sizes.items())
    axes = distinct((*x.axes[:at], *fresh, *x.axes[at + 1 :]))
    return Inferred(_kept(x, axes), {"axis": name, **sizes})


def _merge_reference(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
    """The merged axes are brought together first, in the order they are named."""
    where = positions(types[0], node.attr("axes"))  # type: ignore[arg-type]
    rest = [each for each in range(len(types[0].axes)) if each not in where]
    at = sum(1 for each in rest if each < where[0])
    order = rest[:at] + where + rest[at:]
    return lambda run, x: x.permute(order).reshape([run.size(axis) for axis in node.type.axes])


@operator(reference=_merge_reference, crosses=lambda node, types: tuple(node.attr("axes")))
def Merge(x: TensorType, *axes: object, to: str) -> Inferred:
    """Several axes as one named `to`, the first named the slowest; it stands where the first stood."""
    if len(axes) < 2:
        raise Problem("merge-count", given=len(axes))
    names = resolve(x, axes)
    fresh_name(to)
    if "block" in names:
        together = "(" + ", ".join(f'"{name}"' for name in names) + ")"
        remedy = f"Name the axes together where they are used: `Softmax(x, dim={together})`, `Sum(x, dim={together})`."
        raise Problem("slice-block", axis="block", remedy=remedy)
    size = math.prod(x.axis(name).size for name in names)  # type: ignore[misc,union-attr]
    merged = []
    for axis in x.axes:
        if axis.name == names[0]:
            merged.append(Axis(to, size))
        elif axis.name not in names:
            merged.append(axis)
    return Inferred(_kept(x, distinct(merged)), {"axes": names, "to": to})


def _rename_pads(node: Node, types: tuple[TensorType, ...], operands: tuple[Pads, ...]) -> Pads:
    names = dict(node.attrs)
    return {str(names.get(axis, axis)): held for axis, held in operands[0].items()}


@operator(reference=lambda node, types: lambda run, x: x, pads=_rename_pads)
def Rename(x: TensorType, /, **names: str) -> Inferred:
    """Gives axes other names: `Rename(x, token="other")`. `block` keeps its name, and no axis takes it."""
    if not names:
        raise Problem("rename-nothing")
    for old, new in names.items():
        if x.axis(old) is None:
            raise Problem("no-axis", axis=old, type=x)
        if old == "block":
            raise Problem("rename-block")
        fresh_name(new)
    axes = tuple(replace(axis, name=names.get(axis.name, axis.name)) for axis in x.axes)
    return Inferred(_kept(x, distinct(axes)), dict(names))
