"""How a kernel is cut into tiles, and how many warps work on one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vortex.codegen.fuse import Kernel, Plan
from vortex.codegen.lowering.matmul import LEAST_ROWS, rows_of_block, wants_dot
from vortex.codegen.tile import lanes_of
from vortex.dsl.ir import Program
from vortex.dsl.ops.matmul import contraction

MAP_ELEMENTS = 4096
"""fp32 values of the largest tile of a map kernel: 128 a thread with one warp, what the H200 liked best."""

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
    elements, least_rows = _largest(program, plan, kernel)
    limit, (least, most) = (MAP_ELEMENTS, MAP_TILES) if kernel.kind == "map" else (ROW_ELEMENTS, ROW_TILES)
    tile = min(max(1 << int(math.log2(max(limit / elements, 1))), least), most)
    if least_rows * elements <= 2 * limit:
        tile = max(tile, least_rows)
    total = tile * elements
    warps = 1 if kernel.kind == "map" and total <= MAP_ELEMENTS else 4 if total <= 4 * MAP_ELEMENTS else 8
    return Schedule(tile, warps, elements)


def _largest(program: Program, plan: Plan, kernel: Kernel) -> tuple[int, int]:
    """Elements per block of the largest value that a kernel holds, and how many blocks products on tensor cores
    need at least to have their 16 rows."""
    function = program.indexer
    stop = {buffer.node for buffer in plan.buffers if buffer.how not in ("scores", "mask")}
    outputs = {output.node for each in kernel.passes for output in each.outputs}
    wanted, seen = list(outputs), set()
    largest, least = 1, 1
    while wanted:
        number = wanted.pop()
        if number in seen:
            continue
        seen.add(number)
        node = function.nodes[number]
        if node.type.axis("block") is not None:
            largest = max(largest, math.prod(lanes_of(axis.size or 1) for axis in node.type.axes))
        types = tuple(function.nodes[each].type for each in node.inputs)
        if node.op == "GeMM":
            if wants_dot(types):
                least = max(least, LEAST_ROWS // min(rows_of_block(types), LEAST_ROWS))
            else:
                _, _, contracted, _ = contraction(*types)
                if node.type.axis("block") is not None:
                    made = math.prod(lanes_of(axis.size or 1) for axis in node.type.axes)
                    largest = max(largest, made * lanes_of(contracted.size or 1))
        if number not in stop or number in outputs:
            wanted += node.inputs
    return largest, least
