"""How a kernel is cut into tiles, and how many warps work on one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from vortex.codegen.lowering.matmul import DOT_ELEMENTS, LEAST_ROWS, rows_of_block, wants_dot
from vortex.codegen.steps import Kernel, Plan
from vortex.codegen.tile import lanes_of
from vortex.dsl.axes import TensorType
from vortex.dsl.ir import Function, Program
from vortex.dsl.ops.matmul import contraction

MAP_ELEMENTS = 4096
"""fp32 values of the largest tile of a map kernel: 128 a thread with one warp, what the H200 liked best
(benchmarks/results)."""

ROW_ELEMENTS = 8192
MAP_TILES = (1, 256)
ROW_TILES = (16, 2048)


@dataclass(frozen=True)
class Schedule:
    """tile: blocks of a chunk; warps of a thread block; stages of loads in flight; elements: of the largest value
    per block; workers: thread blocks a multiprocessor that a map kernel is launched with at most."""

    tile: int
    warps: int
    elements: int
    stages: int = 2
    workers: int = 64


def schedule(program: Program, plan: Plan, kernel: Kernel) -> Schedule:
    """The default schedule of a kernel: as many blocks in a tile as its largest value leaves registers for."""
    outputs = {output.node for each in kernel.passes for output in each.outputs}
    kept = {buffer.node for buffer in plan.buffers if buffer.how not in ("scores", "mask")}
    largest = _largest(program.indexer, outputs, kept - outputs)
    limit, (least, most) = (MAP_ELEMENTS, MAP_TILES) if kernel.kind == "map" else (ROW_ELEMENTS, ROW_TILES)
    tile = min(max(1 << int(math.log2(max(limit / largest.block, 1))), least), most)
    if largest.rows * largest.block <= 2 * limit:
        tile = max(tile, largest.rows)
    if largest.dot:
        tile = min(tile, max(DOT_ELEMENTS // largest.dot, 1))
    warps = warps_for(max(tile * largest.block, largest.row), 1 if kernel.kind == "map" else 4)
    return Schedule(tile, warps, largest.block)


FUSED_ELEMENTS = 32768
"""fp32 values of the largest tile of a fused kernel: 128 a thread with 8 warps."""

MULTIPROCESSORS = 132
LAUNCH, LATENCY, SELECT = 1.5, 2.0, 3.0
"""Microseconds of a launch inside a graph, of a kernel's dependent loads, and of a selection in one thread block."""

DEVICE_RATE, BLOCK_RATE = 4.3e6, 5e4
"""Bytes a microsecond that the device reads, and that one thread block reads."""


@dataclass(frozen=True)
class Form:
    """Whether a row runs fused, with the estimated microseconds of both forms."""

    fused: bool
    fused_us: float
    split_us: float


def choose_form(rows: int, blocks: int, block_bytes: float, elements: int) -> Form:
    """One kernel a row, or scores in parallel and a selection after them, by what they move and fill.

    rows (request, KV head) of at most `blocks` blocks; block_bytes: of entries read per block; elements: of the
    largest value per block
    """
    waves = -(-rows // (2 * MULTIPROCESSORS))
    fused = LAUNCH + waves * (LATENCY + blocks * block_bytes / BLOCK_RATE + SELECT)
    selects = -(-rows // (4 * MULTIPROCESSORS)) * SELECT
    split = 2 * LAUNCH + 2 * LATENCY + rows * blocks * block_bytes / DEVICE_RATE + selects
    fits = lanes_of(blocks) * elements <= FUSED_ELEMENTS
    return Form(fits and fused < split, fused, split)


def summary_warps(program: Program) -> int:
    """Warps of the kernels that summarise one (block, KV head) at a time."""
    outputs = [store.value for store in program.cache.stores]
    return warps_for(_largest(program.cache, outputs, set()).row, 1)


def warps_for(elements: int, least: int) -> int:
    """Warps that hold a value of so many elements with about 128 of them a thread."""
    steps = ((MAP_ELEMENTS, 1), (4 * MAP_ELEMENTS, 4), (8 * MAP_ELEMENTS, 8))
    return max(least, next((warps for most, warps in steps if elements <= most), 16))


@dataclass(frozen=True)
class Largest:
    """block: elements per block of the largest value with a block axis; row: elements of the largest value without
    one; rows: blocks that products on tensor cores need at least to have their 16 rows; dot: elements per block of
    the largest operand of those products, 0 without any."""

    block: int
    row: int
    rows: int
    dot: int


def _largest(function: Function, outputs: Iterable[int], kept: set[int]) -> Largest:
    """Over all nodes that the outputs are computed from, stopping at kept values."""
    wanted, seen = list(outputs), set()
    block, row, rows, dot = 1, 1, 1, 0
    while wanted:
        number = wanted.pop()
        if number in seen:
            continue
        seen.add(number)
        node = function.nodes[number]
        types = tuple(function.nodes[each].type for each in node.inputs)
        made = value_elements(node.type)
        if node.op == "GeMM" and wants_dot(types):
            rows = max(rows, LEAST_ROWS // min(rows_of_block(types), LEAST_ROWS))
            dot = max(dot, value_elements(types[0]))
        elif node.op == "GeMM":
            made *= lanes_of(contraction(*types)[2].size or 1)
        elif node.op == "topK" and (ranked := types[0].axis(str(node.attr("dim", "block")))) is not None:
            # Each element is compared with every other one.
            made *= lanes_of(ranked.size or 1)
        if node.type.axis("block") is not None:
            block = max(block, made)
        else:
            row = max(row, made)
        operands = node.inputs
        if _on_tensor_cores(function, number):
            operands = function.nodes[node.inputs[0]].inputs
            dot = max(dot, *(value_elements(function.nodes[each].type) for each in operands))
        if number not in kept:
            wanted += operands
    return Largest(block, row, rows, dot)


def _on_tensor_cores(function: Function, number: int) -> bool:
    """Whether a sum is lowered together with the product it sums, which then never exists."""
    node = function.nodes[number]
    source = function.nodes[node.inputs[0]] if node.inputs else node
    if node.op != "Sum" or source.op != "Mul" or len(node.attr("dim")) != 1:  # type: ignore[arg-type]
        return False
    a, b = (function.nodes[each].type for each in source.inputs)
    shared = set(node.attr("dim"))  # type: ignore[arg-type]
    if set(a.names) & set(b.names) != shared or min(len(a.axes), len(b.axes)) < 2:
        return False
    # A tile of blocks has rows enough; other values may be too small.
    rest = [
        math.prod(lanes_of(axis.size or LEAST_ROWS) for axis in each.axes if axis.name not in shared)
        for each in (a, b)
    ]
    return min(rest) >= LEAST_ROWS


def value_elements(type_: TensorType) -> int:
    """Lanes of a value: of one block of it, where it has a block axis."""
    return math.prod(lanes_of(axis.size) for axis in type_.axes if axis.size is not None)
