"""Evaluates a function of the IR eagerly: what every kernel is compared with.

A function says what happens to one (request, KV head) or to one finished block. It is evaluated for many such
*lanes* at once: an operator's reference sees its operands with one more axis in front, the lanes. References
work by axis name, so this changes nothing but speed. What is restricted to a set of blocks has another size in
each lane and is evaluated lane by lane, with the references as they are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vortex.dsl.axes import BLOCK, Axis, TensorType, computed
from vortex.dsl.ir import Function, Node
from vortex.dsl.registry import OPERATORS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LANE = Axis("*", None)
"""The axis in front of lifted values; no axis of a flow can have this name."""

Combine = Callable[["Tensor"], "Tensor"]
"""Rows of scores [lanes, blocks] -> the row [blocks] that all lanes select from."""


class Run:
    """One evaluation: what leaves read, and what references may ask.

    lanes          KV heads of a request, or blocks that are summarised
    blocks         size of the block axis, n
    sinks, recent  blocks at the start and end of it that every selection contains
    take           k of a topK (None: the budget) -> ids to select along block, the reserved ones included
    sources        "input", "entry", "state", "weight" -> name -> tensor over the axes of the leaf's type, with
                   the lanes in front where the evaluation says that the leaf varies
    dtype          float dtype of the arithmetic: fp32, or fp64 to measure errors against
    """

    def __init__(
        self,
        sources: dict[str, Callable[[str], Tensor]],
        *,
        lanes: int,
        blocks: int,
        sinks: int,
        recent: int,
        take: Callable[[Any], int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.sources, self.lanes = sources, lanes
        self.blocks, self.sinks, self.recent, self.take = blocks, sinks, recent, take
        self.dtype, self.device = dtype, device
        self.lane: int | None = None
        self.values: list[Any] = []
        self.varies: Sequence[bool] = ()

    def of_lane(self, lane: int) -> Run:
        """The same evaluation as one lane sees it; values are shared."""
        one = copy.copy(self)
        one.lane = lane
        return one

    def value(self, node: int) -> Any:
        """What a node holds: of all lanes, or of this one. Ragged values are lists over the lanes."""
        held = self.values[node]
        return held if self.lane is None or not self.varies[node] else held[self.lane]

    def _leaf(self, kind: str, name: str) -> Tensor:
        value = self.sources[kind](name)
        return value.to(self.dtype) if value.is_floating_point() and value.dtype != self.dtype else value

    def input(self, name: str) -> Tensor:
        return self._leaf("input", name)

    def entry(self, name: str) -> Tensor:
        return self._leaf("entry", name)

    def state(self, name: str) -> Tensor:
        return self._leaf("state", name)

    def weight(self, name: str) -> Tensor:
        return self._leaf("weight", name)

    def torch_dtype(self, dtype: str) -> torch.dtype:
        import torch

        return {"bool": torch.bool, "int32": torch.int64}.get(computed(dtype), self.dtype)

    def constant(self, value: float, dtype: str) -> Tensor:
        import torch

        return torch.tensor(value, dtype=self.torch_dtype(dtype), device=self.device)

    def arange(self, count: int) -> Tensor:
        import torch

        return torch.arange(count, device=self.device)

    def members(self, node: int) -> Tensor:
        """Ascending ids of the set of blocks that a node holds in this lane."""
        held: Tensor = self.value(node)
        return held.nonzero().flatten()

    def size(self, axis: Axis) -> int:
        if axis.size is not None:
            return axis.size
        if axis == LANE:
            return self.lanes
        return self.blocks if axis.subset is None else len(self.members(axis.subset))


def indicator(source: TensorType, ids: Tensor) -> Tensor:
    """An index set along an axis other than block as a boolean over its axes."""
    import torch

    assert source.members is not None
    position = source.names.index(source.members.axis)
    size = source.axes[position].size
    assert size is not None
    # One lane more than the axis catches the places without a member.
    mask = torch.zeros((*ids.shape[:-1], size + 1), dtype=torch.bool, device=ids.device)
    mask.scatter_(-1, ids.masked_fill(ids < 0, size), True)
    return mask[..., :size].movedim(-1, position)


def everywhere(run: Run, x: Tensor, source: TensorType) -> Tensor:
    """A lane's scores over the whole block axis: -inf where a restricted axis has no member."""
    subset = source.axis("block").subset  # type: ignore[union-attr]
    if subset is None:
        return x
    full = x.new_full((run.blocks,), -math.inf)
    full[run.members(subset)] = x
    return full


@dataclass(frozen=True)
class Step:
    """One node, ready to be evaluated.

    types    of the operands in one lane
    compute  the operator's reference; it takes the operands of all lanes at once, the lanes in front
    by_lane  evaluated lane by lane instead
    ragged   lanes may hold results of different sizes: the value is a list over the lanes
    """

    number: int
    node: Node
    types: tuple[TensorType, ...]
    compute: Callable[..., Any]
    as_indicator: tuple[TensorType | None, ...]
    by_lane: bool
    ragged: bool

    def operands(self, run: Run) -> list[Any]:
        values = [run.value(each) for each in self.node.inputs]
        for position, wanted in enumerate(self.as_indicator):
            if wanted is not None:
                values[position] = indicator(wanted, values[position])
        return values

    def evaluate(self, run: Run, lanes: Sequence[Run], combine: Combine | None) -> Any:
        import torch

        if combine is not None and _selects(self.node):
            return self.compute(run, combine(self.scores(run, lanes)))
        if not self.by_lane:
            return self.compute(run, *self.operands(run))
        values = [self.compute(lane, *self.operands(lane)) for lane in lanes]
        return values if self.ragged else torch.stack(values)

    def scores(self, run: Run, lanes: Sequence[Run]) -> Tensor:
        """What a selection ranks, [lanes, blocks]: -inf where a restricted axis has no member, and for NaN."""
        import torch

        (source,) = self.types
        if _ragged(source):
            rows = torch.stack([everywhere(lane, lane.value(self.node.inputs[0]), source) for lane in lanes])
        else:
            rows = self.operands(run)[0].expand(run.lanes, run.blocks)
        rows = rows.to(run.dtype)
        return rows.masked_fill(rows.isnan(), -math.inf)


class Evaluation:
    """A function made ready once and evaluated often; nodes that nothing needs are left out.

    varying     leaves that differ between lanes; a weight varies where it is `per_lane`
    one_by_one  operators evaluated lane by lane although they need not be
    combine     makes one row of the lanes' scores before a selection of blocks; None selects per lane
    """

    def __init__(
        self,
        function: Function,
        *,
        varying: Iterable[str],
        weights_per_lane: Iterable[str] = (),
        one_by_one: Iterable[str] = (),
        combine: Combine | None = None,
    ) -> None:
        self.function = function
        self.combine = combine
        self.types = tuple(node.type for node in function.nodes)
        self._one_by_one = frozenset(one_by_one)
        self.varies = self._varying(frozenset(varying), frozenset(weights_per_lane))
        kept = needed(function)
        self.steps = [
            self._step(number, node) for number, node in enumerate(function.nodes) if number in kept
        ]
        self._needs_lanes = any(
            step.by_lane or any(map(_ragged, (step.node.type, *step.types))) for step in self.steps
        )

    def _varying(self, leaves: frozenset[str], weights: frozenset[str]) -> tuple[bool, ...]:
        """Which nodes hold a value per lane: what varying leaves reach, unless the lanes select together."""
        varies: list[bool] = []
        for node in self.function.nodes:
            own = node.op in leaves or (node.op == "Weight" and node.attr("name") in weights)
            together = self.combine is not None and _selects(node)
            varies.append(not together and (own or any(varies[each] for each in node.inputs)))
        return tuple(varies)

    def _step(self, number: int, node: Node) -> Step:
        types = tuple(self.types[each] for each in node.inputs)
        ragged = self.varies[number] and _ragged(node.type)
        by_lane = self.varies[number] and (
            any(map(_ragged, (node.type, *types)))
            or node.op in self._one_by_one
            or _holds_vector(node, types)
        )
        seen = types
        if self.combine is not None and _selects(node):
            seen = (TensorType((BLOCK,)),)
        elif self.varies[number] and not by_lane:
            seen = tuple(self.lifted(each) for each in node.inputs)
            node = _lifted_node(node)
        op = OPERATORS[node.op]
        compute = op.reference(node, seen)
        as_indicator = tuple(each if holds_ids(each) and not op.takes_sets else None for each in seen)
        return Step(number, node, types, compute, as_indicator, by_lane, ragged)

    def evaluate(self, run: Run) -> None:
        """Fills `run.values` node by node."""
        run.values = [None] * len(self.types)
        run.varies = self.varies
        lanes = self._lanes(run)
        for step in self.steps:
            run.values[step.number] = step.evaluate(run, lanes, self.combine)

    def _lanes(self, run: Run) -> list[Run]:
        return [run.of_lane(lane) for lane in range(run.lanes)] if self._needs_lanes else []

    def lifted(self, node: int) -> TensorType:
        """The type of what a node holds for all lanes together."""
        return _lifted(self.types[node]) if self.varies[node] else self.types[node]

    def tensor(self, run: Run, node: int) -> Tensor:
        """What a node holds after `evaluate`, the lanes in front: an index set as its indicator."""
        value = run.values[node]
        if holds_ids(self.types[node]):
            value = indicator(self.lifted(node), value)
        result: Tensor = value if self.varies[node] else value.expand(run.lanes, *value.shape)
        return result

    def scores(self, run: Run) -> Tensor:
        """What the result selects by, [lanes, blocks], after `evaluate`; -inf where a block is no candidate.

        Raises ValueError where the result does not rank blocks by scores.
        """
        step = next(step for step in self.steps if step.number == self.function.result)
        if not _selects(step.node):
            raise ValueError(f"the result is {step.node.op}, which ranks no scores")
        rows = step.scores(run, self._lanes(run))
        return rows if self.combine is None else self.combine(rows).expand_as(rows)


SELECTIONS = ("topK", "topP", "Threshold")
"""Operators that pick blocks by their scores. Along block their sets contain the reserved blocks."""


def _selects(node: Node) -> bool:
    """Whether the node picks blocks by a row of scores, its only operand."""
    return node.op in SELECTIONS and node.type.names[-1:] == ("block",)


def holds_ids(type: TensorType) -> bool:
    """Whether a value is held as the ids of an index set; a set along block is held as a boolean."""
    return type.members is not None and type.members.axis != "block"


def _ragged(type: TensorType) -> bool:
    """Whether lanes may hold values of different sizes."""
    return any(axis.subset is not None for axis in type.axes)


def _holds_vector(node: Node, types: tuple[TensorType, ...]) -> bool:
    """A product with a vector: one more axis would make it a matrix."""
    return node.op == "GeMM" and any(len(each.axes) == 1 for each in types)


def _lifted(type: TensorType) -> TensorType:
    return replace(type, axes=(LANE, *type.axes))


def _lifted_node(node: Node) -> Node:
    attrs = dict(node.attrs)
    if node.op == "Slice":
        attrs["index"] = (None, *attrs["index"])  # type: ignore[misc]
    return replace(node, type=_lifted(node.type), attrs=tuple(attrs.items()))


def needed(function: Function) -> set[int]:
    """Nodes that the result and the stores depend on, through operands and through restricted axes."""
    wanted = [store.value for store in function.stores]
    if function.result is not None:
        wanted.append(function.result)
    found: set[int] = set()
    while wanted:
        number = wanted.pop()
        if number in found:
            continue
        found.add(number)
        node = function.nodes[number]
        wanted += [*node.inputs, *(axis.subset for axis in node.type.axes if axis.subset is not None)]
    return found
