"""Named axes and the types of tensors in a flow: how operands align, and what `dim=` means.

A tensor prints as (1, axes…): the leading 1 is the request, at position 0; the named axes follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vortex.dsl.problem import Problem

NAMED = ("block", "token", "head", "dim")
"""Axes whose names must agree where two of them are contracted."""

FLOATS = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "sign")
"""Dtypes that compute as fp32; all but the first only say how a `Cast` value is rounded and stored."""


@dataclass(frozen=True)
class Axis:
    """One named axis.

    size    elements, or None for `block`, whose size each request decides
    subset  for a restricted `block`: the node of the indexer that holds its ids, else None
    """

    name: str
    size: int | None
    subset: int | None = None

    def __str__(self) -> str:
        if self.size is not None:
            return f"{self.name}={self.size}"
        return self.name if self.subset is None else f"{self.name}[%{self.subset}]"


BLOCK = Axis("block", None)


@dataclass(frozen=True)
class Members:
    """What makes a boolean tensor an index set: the axis it picks from, and how many at most (None: the policy)."""

    axis: str
    count: int | None = None


@dataclass(frozen=True)
class TensorType:
    """Axes and dtype of one tensor of a flow; `members` is set for an index set."""

    axes: tuple[Axis, ...]
    dtype: str = "fp32"
    members: Members | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    def __str__(self) -> str:
        shape = ", ".join(["1", *(str(axis) for axis in self.axes)])
        if self.members is None:
            return f"({shape}) {self.dtype}"
        count = "" if self.members.count is None else f", {self.members.count}"
        return f"({shape}) set({self.members.axis}{count})"

    def axis(self, name: str) -> Axis | None:
        return next((axis for axis in self.axes if axis.name == name), None)

    def without(self, names: Iterable[str]) -> TensorType:
        dropped = set(names)
        return TensorType(tuple(axis for axis in self.axes if axis.name not in dropped), self.dtype)

    def value(self, dtype: str | None = None) -> TensorType:
        """The type of a computed value over the same axes: fp32 where a cast value is read."""
        return TensorType(self.axes, dtype or computed(self.dtype))


def computed(dtype: str) -> str:
    """The dtype in which a value of this dtype takes part in arithmetic."""
    return "fp32" if dtype in FLOATS else dtype


def promote(*types: TensorType) -> str:
    """Common dtype of arithmetic: fp32 over int32 over bool; two booleans count as int32."""
    dtypes = {computed(t.dtype) for t in types}
    return "fp32" if "fp32" in dtypes else "int32"


def arranged(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The order of an aligned result that no operand decides: block, token, head, others, dim."""
    rank = {"block": 0, "token": 1, "head": 2, "dim": 4}
    return tuple(sorted(axes, key=lambda axis: rank.get(axis.name, 3)))


def unite(types: Sequence[TensorType]) -> list[Axis]:
    """Axes of all operands in order of appearance; same-named axes must be the same axis."""
    seen: dict[str, Axis] = {}
    for each in types:
        for axis in each.axes:
            known = seen.setdefault(axis.name, axis)
            if known == axis:
                continue
            if axis.name == "block":
                raise Problem("restricted-block", left=str(known), right=str(axis))
            raise Problem("axis-size", axis=axis.name, left=known.size, right=axis.size)
    return list(seen.values())


def align(types: Sequence[TensorType]) -> tuple[Axis, ...]:
    """Axes of an elementwise result: the order of the operand that has them all, else `arranged`."""
    axes = unite(types)
    for each in types:
        if len(each.axes) == len(axes):
            return each.axes
    return arranged(axes)


def distinct(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes, refused when two of them share a name."""
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise Problem("two-blocks" if name == "block" else "repeated-axis", axis=name)
    return tuple(axes)


def resolve(x: TensorType, dim: object) -> tuple[str, ...]:
    """Axis names that `dim=` means for this tensor: a name, a position, or a tuple of them."""
    picked = dim if isinstance(dim, tuple | list) else (dim,)
    if not picked:
        raise Problem("bad-dim", dim=dim)
    names = tuple(_resolve(x, each) for each in picked)
    for name in names:
        if names.count(name) > 1:
            raise Problem("repeated-dim", axis=name)
    return names


def resolve_one(x: TensorType, dim: object, what: str) -> str:
    """The one axis that `dim=` means; `what` names the operator that takes no more."""
    names = resolve(x, dim)
    if len(names) != 1:
        raise Problem("one-axis", what=what, dims=", ".join(names))
    return names[0]


def _resolve(x: TensorType, dim: object) -> str:
    if isinstance(dim, str):
        if x.axis(dim) is None:
            raise Problem("no-axis", axis=dim, type=x)
        return dim
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise Problem("bad-dim", dim=dim)
    rank = len(x.axes) + 1
    if rank == 1:
        raise Problem("reduce-scalar")
    position = dim + rank if dim < 0 else dim
    if position == 0:
        raise Problem("request-axis", type=x)
    if not 0 < position < rank:
        raise Problem("dim-range", dim=dim, type=x, last=rank - 1, first=x.axes[0].name)
    return x.axes[position - 1].name


def fresh_name(name: object) -> str:
    """A name that an author gives an axis; `block` belongs to the axis of blocks alone."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise Problem("axis-name", name=name)
    if name == "block":
        raise Problem("rename-block")
    return name


def resize(axis: Axis, size: int | None) -> Axis:
    return replace(axis, size=size)
