"""Which nodes run in which kernel, and what passes between kernels through memory.

Map operators work within a block, row operators need the whole row of one (request, KV head). A value is ready at a
level: one more than its operands' where a row operator stands between. At each level

* a map kernel, parallel over chunks of blocks, computes what reads much per block and keeps the small results;
* a row kernel, one thread block a row, runs the reductions and scans over those, in passes;
* selections turn rows of scores into ids.

Everything else is recomputed where it is used: a node has no kernel of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from vortex.codegen.steps import Buffer, How, Kernel, Output, Pass, Plan, Select, Step
from vortex.dsl.axes import Axis, TensorType
from vortex.dsl.ir import Function, Program
from vortex.dsl.registry import OPERATORS

LIGHT = 16
"""Elements per block that a row kernel reads itself; beyond it a map kernel reads them and keeps the result."""

LIGHT_MEMBERS = 256
"""The same for members of a set, which are few."""

ROW_WORK = 4096
"""Products of a value per row beyond which it is computed once, in a kernel of its own."""

KEEP = 1024
"""Elements per block of a kept value at most; larger ones are recomputed in the row kernel."""


SELECTIONS = ("topK", "topP", "Threshold")


def selects_blocks(function: Function, number: int) -> bool:
    node = function.nodes[number]
    return node.op in SELECTIONS and node.attr("dim", "block") == "block"


def row_kind(function: Function, number: int) -> str | None:
    """How a node crosses the block axis: "reduce", "scan", "window", "lookup", "scatter", "select", or not."""
    node = function.nodes[number]
    types = tuple(function.nodes[each].type for each in node.inputs)
    if node.op == "Gather" and node.attr("dim") is None:
        return None
    crosses = OPERATORS[node.op].crosses(node, types)
    if "block" not in crosses:
        return None
    if selects_blocks(function, number):
        return "select"
    kinds = {
        "CumSum": "scan",
        "Conv1d": "window",
        "MaxPool1d": "window",
        "Gather": "lookup",
        "Scatter": "scatter",
    }
    return kinds.get(node.op, "reduce")


def domain_of(type_: TensorType) -> int | None:
    """The set that a value's block axis is restricted to; None for all blocks, -1 without a block axis."""
    block = type_.axis("block")
    return -1 if block is None else block.subset


def inner(type_: TensorType) -> tuple[Axis, ...]:
    return tuple(axis for axis in type_.axes if axis.size is not None)


def inner_elements(type_: TensorType) -> int:
    return math.prod(axis.size or 1 for axis in inner(type_))


def reached(function: Function) -> set[int]:
    """Nodes that the result and the stores depend on, through operands and through restricted axes."""
    wanted = [store.value for store in function.stores]
    if function.result is not None:
        wanted.append(function.result)
    found: set[int] = set()
    while wanted:
        number = wanted.pop()
        if number not in found:
            found.add(number)
            node = function.nodes[number]
            wanted += [*node.inputs, *(axis.subset for axis in node.type.axes if axis.subset is not None)]
    return found


MEMORY = ("Input", "Entry", "State")


@dataclass
class Planner:
    """Builds the plan of one indexer."""

    program: Program
    function: Function
    levels: dict[int, int] = field(default_factory=dict)
    kept: dict[int, Buffer] = field(default_factory=dict)
    indicators: set[int] = field(default_factory=set)
    buffers: list[Buffer] = field(default_factory=list)

    def plan(self) -> Plan:
        needed = sorted(reached(self.function))
        for number in needed:
            self.levels[number] = self._level(number)
        tasks: dict[int, list[tuple[int, Output]]] = {}
        for number in needed:
            for level, domain, output in self._tasks(number, needed):
                tasks.setdefault(level, []).append((domain if domain is not None else -2, output))
        for level, domain, output in self._heavy_rows(needed):
            tasks.setdefault(level, []).insert(0, (domain if domain is not None else -2, output))
        steps: list[Step] = []
        for level in sorted(tasks):
            self._run_level(level, tasks[level], steps)
        self._final(steps)
        self._states(steps)
        domains = {each.domain for step in steps if isinstance(step, Kernel) for each in step.passes}
        marked = [
            replace(each, inner=each.node in domains) if isinstance(each, Select) else each for each in steps
        ]
        return Plan(tuple(merge_rows(marked)), tuple(self.buffers))

    # Levels

    def _level(self, number: int) -> int:
        """The level at which a node's value can be evaluated from memory."""
        node = self.function.nodes[number]
        base = max((self._edge(number, each) for each in node.inputs), default=0)
        subset = domain_of(node.type)
        if subset is not None and subset >= 0:
            # A set that no selection operator made is written out as a mask first, and selected from it.
            base = max(base, self.levels[subset] + (not self._is_made_set(subset)))
        kind = row_kind(self.function, number)
        if kind == "lookup" and self._reads_memory(node.inputs[0]):
            return base
        return base + (kind is not None)

    def _edge(self, number: int, operand: int) -> int:
        """Level of an operand; a set of blocks that is read as a boolean is written out one level later."""
        level = self.levels[operand]
        if self._is_made_set(operand) and self._wants_indicator(number):
            self.indicators.add(operand)
            return level + 1
        return level

    def _is_made_set(self, number: int) -> bool:
        return selects_blocks(self.function, number)

    def _wants_indicator(self, number: int) -> bool:
        node = self.function.nodes[number]
        return not (node.op == "Gather" and node.attr("dim") is None)

    def _reads_memory(self, number: int) -> bool:
        node = self.function.nodes[number]
        while node.op == "Transpose":
            node = self.function.nodes[node.inputs[0]]
        return node.op in MEMORY

    # Values of rows

    def _heavy_rows(self, needed: list[int]) -> Iterator[tuple[int, int | None, Output]]:
        """Values without a block axis that are dear to compute and used by values that have one: computed once a
        row, before the chunks that would each compute them again."""
        nodes = self.function.nodes
        used = {
            each
            for number in needed
            if nodes[number].type.axis("block") is not None
            for each in nodes[number].inputs
        }
        for number in needed:
            node = nodes[number]
            row = node.type.axis("block") is None and node.inputs and row_kind(self.function, number) is None
            if row and number in used and node.type.members is None and self._row_work(number) > ROW_WORK:
                yield self.levels[number], -1, Output(number, "store")

    def _row_work(self, number: int) -> int:
        """Products and sums of a value without a block axis, down to what memory holds."""
        node = self.function.nodes[number]
        if row_kind(self.function, number) is not None:
            return 0
        types = [self.function.nodes[each].type for each in node.inputs]
        own = math.prod(axis.size or 1 for axis in node.type.axes)
        crossed = OPERATORS[node.op].crosses(node, tuple(types))
        for type_ in types[:1]:
            own *= math.prod(axis.size or 1 for axis in type_.axes if axis.name in crossed)
        return own * bool(node.inputs) + sum(self._row_work(each) for each in node.inputs)

    # Tasks

    def _tasks(self, number: int, needed: list[int]) -> Iterator[tuple[int, int | None, Output]]:
        """What must be brought to memory so that this node can be evaluated, with the level it happens at."""
        node = self.function.nodes[number]
        kind = row_kind(self.function, number)
        level = self.levels[number] - 1
        if kind in ("reduce", "scan"):
            source = next(
                each for each in node.inputs if self.function.nodes[each].type.axis("block") is not None
            )
            yield level, domain_of(self.function.nodes[source].type), Output(number, kind)  # type: ignore[arg-type]
        elif kind == "window" or (kind == "lookup" and not self._reads_memory(node.inputs[0])):
            source = node.inputs[0]
            if row_kind(self.function, source) not in ("scan", "scatter", "select"):
                yield level, domain_of(self.function.nodes[source].type), Output(source, "store")
        elif kind == "scatter":
            fill = node.attr("fill")
            yield level, None, Output(number, "fill", "scatter", float(fill))  # type: ignore[arg-type]
            yield level, domain_of(self.function.nodes[node.inputs[0]].type), Output(number, "scatter")
        elif kind == "select":
            source = node.inputs[0]
            domain = domain_of(self.function.nodes[source].type)
            if domain is not None:
                yield level, None, Output(source, "fill", "scores", -math.inf)
            yield level, domain, Output(source, "scores")
            yield level, -1, Output(number, "mask")
        if number in self.indicators:
            yield self.levels[number], None, Output(number, "fill", "scatter")
            yield self.levels[number], number, Output(number, "scatter")
        if node.op == "Gather" and node.attr("dim") is None and not self._is_made_set(node.inputs[1]):
            members = node.inputs[1]
            yield self.levels[members], None, Output(members, "mask")

    def _keep(self, output: Output, layout: str) -> None:
        node = self.function.nodes[output.node]
        how: How = output.name if output.how == "fill" else output.how  # type: ignore[assignment]
        scores = how in ("scores", "mask")
        axes = () if scores else inner(node.type)
        dtype = "fp32" if scores or node.type.dtype == "bool" else node.type.dtype
        buffer = Buffer(output.node, how, layout, axes, "int32" if dtype == "int32" else "fp32")  # type: ignore[arg-type]
        if all(each.key != buffer.key for each in self.buffers):
            self.buffers.append(buffer)
        if how not in ("scores", "mask"):
            self.kept[output.node] = buffer

    def heavy(self, number: int) -> bool:
        """Whether evaluating a node reads many elements per block."""
        node = self.function.nodes[number]
        if number in self.kept:
            kept = self.kept[number]
            return kept.layout != "row" and kept.elements > (
                LIGHT_MEMBERS if kept.layout == "member" else LIGHT
            )
        if node.op in MEMORY and node.type.axis("block") is not None:
            return inner_elements(node.type) > LIGHT
        return node.type.axis("block") is not None and any(self.heavy(each) for each in node.inputs)

    # Steps

    def _run_level(self, level: int, tasks: list[tuple[int, Output]], steps: list[Step]) -> None:
        """Kernels of one level: fills, then what maps compute, then what rows compute, then selections."""
        fills = [output for _, output in tasks if output.how == "fill"]
        work = [
            (None if domain == -2 else domain, output) for domain, output in tasks if output.how != "fill"
        ]
        chosen = [output.node for domain, output in work if output.how == "mask" and domain == -1]
        work = [(domain, output) for domain, output in work if not (output.how == "mask" and domain == -1)]
        if fills:
            self._emit(steps, "row", None, fills)
        for domain in sorted(dict.fromkeys(domain for domain, _ in work), key=lambda each: each != -1):
            outputs = list(dict.fromkeys(output for each, output in work if each == domain))
            self._run_domain(domain, outputs, steps)
        for node in chosen:
            source = self.function.nodes[node].inputs[0]
            final = node == self.function.result
            steps.append(Select(node, f"scores_{source}", final, reserves=True, shares=True))
        for _, output in work:
            if output.how == "mask":
                steps.append(Select(output.node, f"mask_{output.node}", False, reserves=False, shares=False))

    def _run_domain(self, domain: int | None, outputs: list[Output], steps: list[Step]) -> None:
        """One domain at one level: heavy values in a map kernel, what needs the whole row in a row kernel."""
        mapped: list[Output] = []
        rowed: list[Output] = []
        if domain == -1:
            self._emit(steps, "row", domain, outputs)
            return
        for output in outputs:
            if output.how in ("reduce", "scan"):
                mapped += self._heavy_operands(output.node)
                rowed.append(output)
            elif self.heavy(output.node if output.how != "scatter" else self._scattered(output.node)):
                mapped.append(output)
            else:
                rowed.append(output)
        mapped = list(dict.fromkeys(mapped))
        if mapped:
            self._emit(steps, "map", domain, mapped)
        if rowed:
            alone = not any(output.how in ("reduce", "scan", "scatter") for output in rowed)
            follows = bool(steps) and isinstance(steps[-1], Kernel) and steps[-1].kind == "row"
            self._emit(steps, "map" if alone and not follows else "row", domain, rowed)

    def _scattered(self, number: int) -> int:
        node = self.function.nodes[number]
        return node.inputs[0] if node.op == "Scatter" else number

    def _heavy_operands(self, number: int) -> list[Output]:
        """Operands of a reduction over block that a map kernel computes and keeps."""
        found = []
        for each in self.function.nodes[number].inputs:
            type_ = self.function.nodes[each].type
            memory = self._reads_memory(each)
            if type_.axis("block") is None or each in self.kept or memory or not self.heavy(each):
                continue
            if inner_elements(type_) <= KEEP:
                found.append(Output(each, "store"))
        return found

    def _emit(
        self, steps: list[Step], kind: Literal["map", "row"], domain: int | None, outputs: list[Output]
    ) -> None:
        for output in outputs:
            reads_rows = output.how == "reduce"
            by_member = output.how in ("store", "scan") and domain is not None and domain >= 0
            layout = "row" if reads_rows or domain == -1 else "member" if by_member else "block"
            if output.how != "state":
                self._keep(output, layout)
        steps.append(Kernel(kind, (Pass(domain, tuple(outputs)),)))

    def _final(self, steps: list[Step]) -> None:
        """The selection of the result where it was not made by a selection operator."""
        result = self.function.result
        assert result is not None
        if not self._is_made_set(result):
            self._run_domain(None, [Output(result, "mask")], steps)
            steps.append(Select(result, f"mask_{result}", True, reserves=True, shares=False))

    def _states(self, steps: list[Step]) -> None:
        """New values of states, after everything that reads the old ones."""
        stores = self.function.stores
        blocks = [each for each in stores if self.function.nodes[each.value].type.axis("block") is not None]
        rows = [each for each in stores if each not in blocks]
        if blocks:
            outputs = [Output(each.value, "state", each.name) for each in blocks]
            self._run_domain(None, outputs, steps)
        if rows:
            self._emit(steps, "row", -1, [Output(each.value, "state", each.name) for each in rows])


def merge_rows(steps: list[Step]) -> list[Step]:
    """Row kernels that follow one another become one kernel with several passes."""
    merged: list[Step] = []
    for step in steps:
        last = merged[-1] if merged else None
        if isinstance(step, Kernel) and isinstance(last, Kernel) and step.kind == last.kind == "row":
            merged[-1] = replace(last, passes=(*last.passes, *step.passes))
        else:
            merged.append(step)
    return merged


def fusable(program: Program) -> int | None:
    """The scores that one thread block can compute and select from without memory in between; None where it cannot.

    All that crosses blocks is a reduction or a running sum, and the only selection is the result.
    """
    function, policy = program.indexer, program.policy
    if function.stores or policy.share_heads or policy.reuse_steps > 1:
        return None
    for number in reached(function):
        kind = row_kind(function, number)
        final = number == function.result
        if kind in ("window", "lookup", "scatter") or (kind == "select") != final:
            return None
        node = function.nodes[number]
        if node.op == "Gather" and node.attr("dim") is None:
            return None
    result = function.nodes[function.result]  # type: ignore[index]
    return result.inputs[0] if result.op == "topK" else None


def plan(program: Program) -> Plan:
    """The plan of a program's indexer."""
    return Planner(program, program.indexer).plan()
