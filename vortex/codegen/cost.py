"""What a value costs, estimated from types: the judge of rewrites that regroup arithmetic.

The number of blocks is a symbol: costs are counted per block and per row (one request and KV head).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vortex.codegen.edit import Edit
from vortex.codegen.graph import dependencies
from vortex.dsl.axes import TensorType
from vortex.dsl.ir import Node
from vortex.dsl.ops.inputs import LEAVES

NOMINAL_BLOCKS = 32
"""Blocks that share work per row: what one thread block scores, each of which does the row's work anew."""

OPERATIONS_PER_BYTE = 8
"""Multiply-adds that an H200 does in the time in which it reads a byte, outside the tensor cores."""

FREE = ("Transpose", "Rename", "Split", "Merge", "Slice", "Const", "Position", "First", "Last")
"""Views and what registers hold."""


@dataclass(frozen=True)
class Cost:
    """Operations per block and per row, and bytes read per block.

    An operation is an element of an elementwise result, an element that a reduction takes in, or a multiply-add.
    """

    block: float = 0.0
    row: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.block + other.block, self.row + other.row, self.bytes + other.bytes)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.block - other.block, self.row - other.row, self.bytes - other.bytes)

    @property
    def total(self) -> float:
        return (self.block + OPERATIONS_PER_BYTE * self.bytes) * NOMINAL_BLOCKS + self.row

    def __str__(self) -> str:
        parts = [
            f"{value:,.0f} {unit}"
            for value, unit in (
                (self.block, "operations a block"),
                (self.bytes, "bytes a block"),
                (self.row, "operations a row"),
            )
            if value > 0
        ]
        spent = [
            f"{-value:,.0f} more {unit}"
            for value, unit in ((self.block, "operations a block"), (self.row, "operations a row"))
            if value < 0
        ]
        return " and ".join(parts or ["nothing"]) + (f" for {' and '.join(spent)}" if spent else "")


def elements(x: TensorType) -> float:
    """Elements of a value, a `block` axis counted once."""
    return float(math.prod(axis.size or 1 for axis in x.axes))


def node_cost(node: Node, types: tuple[TensorType, ...]) -> Cost:
    """What one node adds, given the types of its operands."""
    over_blocks = any(axis.size is None for each in (node.type, *types) for axis in each.axes)
    if node.op in LEAVES:
        return (
            Cost(bytes=2 * elements(node.type)) if over_blocks and node.op in ("Entry", "Input") else Cost()
        )
    if node.op in FREE:
        return Cost()
    work = elements(node.type)
    if node.op == "GeMM":
        work *= types[0].axes[-1].size or 1
    elif types:
        work = max(work, *(elements(each) for each in types))
    return Cost(block=work) if over_blocks else Cost(row=work)


def saving(edit: Edit, number: int, made: int, start: int) -> Cost:
    """What the function no longer computes when the old node `number` becomes the new node `made`.

    start  the first node that was added for it
    """
    fresh, reused = _reached(edit, made, start)
    added = Cost()
    for each in fresh:
        node = edit.nodes[each]
        added += node_cost(node, tuple(edit.type(operand) for operand in node.inputs))
    removed = Cost()
    uses: dict[int, int] = {}
    kept = reused | edit.reused
    dying = [number]
    while dying:
        old = edit.node(dying.pop())
        removed += node_cost(old, tuple(edit.node(operand).type for operand in old.inputs))
        for each in dependencies(old):
            uses[each] = uses.get(each, edit.uses[each]) - 1
            if uses[each] == 0 and edit.new[each] not in kept:
                dying.append(each)
    return removed - added


def _reached(edit: Edit, made: int, start: int) -> tuple[set[int], set[int]]:
    """New nodes that the value needs, and nodes of before that they read."""
    fresh: set[int] = set()
    reused: set[int] = set()
    waiting = [made]
    while waiting:
        number = waiting.pop()
        if number < start:
            reused.add(number)
        elif number not in fresh:
            fresh.add(number)
            waiting += dependencies(edit.nodes[number])
    return fresh, reused


def worthwhile(edit: Edit, number: int, made: int, start: int) -> str | None:
    """The judge of a sweep: what is saved, or None where the rewrite costs as much or more."""
    saved = saving(edit, number, made, start)
    if saved.total <= 0:
        return None
    edit.reused |= _reached(edit, made, start)[1]
    return str(saved)
