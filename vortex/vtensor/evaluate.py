"""Evaluates a function of the IR eagerly for one (request, KV head): what every kernel is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vortex.dsl.axes import Axis, TensorType, computed
from vortex.dsl.ir import Function, Node
from vortex.dsl.registry import OPERATORS

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Run:
    """One evaluation: what leaves read, and what references may ask.

    blocks         size of the block axis, n
    sinks, recent  blocks at the start and end of it that every selection contains
    take           k of a topK (None: the budget) -> ids to select along block, the reserved ones included
    sources        "input", "entry", "state", "weight" -> name -> tensor over the axes of the leaf's type
    dtype          float dtype of the arithmetic: fp32, or fp64 to measure errors against
    """

    def __init__(
        self,
        sources: dict[str, Callable[[str], Tensor]],
        *,
        blocks: int,
        sinks: int,
        recent: int,
        take: Callable[[Any], int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.sources = sources
        self.blocks, self.sinks, self.recent, self.take = blocks, sinks, recent, take
        self.dtype, self.device = dtype, device
        self.values: list[Any] = []
        self.types: Sequence[TensorType] = ()

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
        """Ascending ids of the set of blocks that a node holds."""
        value = self.values[node]
        return value if self.types[node].members is not None else value.nonzero().flatten()

    def size(self, axis: Axis) -> int:
        if axis.size is not None:
            return axis.size
        return self.blocks if axis.subset is None else len(self.members(axis.subset))


def indicator(run: Run, source: TensorType, ids: Tensor) -> Tensor:
    """An index set as a boolean over its axes."""
    import torch

    assert source.members is not None
    if source.members.axis == "block":
        mask = torch.zeros(run.blocks, dtype=torch.bool, device=ids.device)
        mask[ids] = True
        return mask
    position = source.names.index(source.members.axis)
    size = source.axes[position].size
    assert size is not None
    # One lane more than the axis catches the places without a member.
    mask = torch.zeros((*ids.shape[:-1], size + 1), dtype=torch.bool, device=ids.device)
    mask.scatter_(-1, ids.masked_fill(ids < 0, size), True)
    return mask[..., :size].movedim(-1, position)


@dataclass(frozen=True)
class Step:
    """One node, ready to be evaluated.

    shared  position of the operand whose rows the KV heads combine before selecting, with share_heads
    """

    node: Node
    types: tuple[TensorType, ...]
    compute: Callable[..., Any]
    as_indicator: tuple[bool, ...]
    shared: bool

    def evaluate(self, run: Run) -> Any:
        values = [run.values[each] for each in self.node.inputs]
        for position, wanted in enumerate(self.as_indicator):
            if wanted:
                values[position] = indicator(run, self.types[position], values[position])
        return self.compute(run, *values)


class Evaluation:
    """A function made ready once and evaluated often; nodes that nothing needs are left out."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.types = tuple(node.type for node in function.nodes)
        kept = needed(function)
        self.steps: list[tuple[int, Step]] = []
        for number, node in enumerate(function.nodes):
            if number in kept:
                self.steps.append((number, self._step(node)))

    def _step(self, node: Node) -> Step:
        types = tuple(self.types[each] for each in node.inputs)
        op = OPERATORS[node.op]
        as_indicator = tuple(each.members is not None and not op.takes_sets for each in types)
        selects = node.op in ("topK", "topP", "Threshold") and node.attr("dim", "block") == "block"
        return Step(node, types, op.reference(node, types), as_indicator, selects)

    def evaluate(self, runs: Sequence[Run], combine: Callable[[list[Tensor]], Tensor] | None = None) -> None:
        """Fills `values` of every run (the KV heads of one request), node by node.

        combine  how rows of scores of the heads become one before a selection; None selects per head
        """
        for run in runs:
            run.values = [None] * len(self.types)
            run.types = self.types
        for number, step in self.steps:
            if combine is not None and step.shared:
                _combine_scores(runs, step, combine)
            for run in runs:
                run.values[number] = step.evaluate(run)


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


def _combine_scores(runs: Sequence[Run], step: Step, combine: Callable[[list[Tensor]], Tensor]) -> None:
    """Replaces each head's row of scores by the combination of all; members that a head lacks count as -inf."""
    (source,) = step.node.inputs
    subset = step.types[0].axis("block").subset  # type: ignore[union-attr]
    rows = []
    for run in runs:
        row = run.values[source].to(run.dtype)
        if subset is not None:
            full = row.new_full((run.blocks,), float("-inf"))
            full[run.members(subset)] = row
            row = full
        rows.append(row)
    together = combine(rows)
    for run in runs:
        run.values[source] = together if subset is None else together[run.members(subset)]
