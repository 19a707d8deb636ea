"""Products: on tensor cores where the shape allows it, else as a broadcast product that is summed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from vortex.codegen.lowering import lowers
from vortex.codegen.tile import Emitter, Scope, Tile, lanes_of
from vortex.dsl.axes import Axis, TensorType
from vortex.dsl.ir import Node
from vortex.dsl.ops.matmul import contraction

CONTRACTED = "(contracted)"
"""Name of the contracted axis while both operands carry it; no author's axis can be called so."""


def operands_of(e: Emitter, number: int, scope: Scope | None) -> tuple[Tile, Tile, Axis]:
    """Both operands over one common name of the contracted axis."""
    types = e.types(number)
    a, b = (e.cast(tile, "fp32") for tile in e.operands(number, scope))
    _, _, left, _ = contraction(*types)
    right = types[1].axes[-2] if len(types[1].axes) > 1 else types[1].axes[-1]
    # Under its common name nothing tells that an axis has more lanes than it needs.
    a = e.held(a, [left.name], 0.0, scope) if left.name in e.wide else a
    b = e.held(b, [right.name], 0.0, scope) if right.name in e.wide else b
    return renamed(a, left.name), renamed(b, right.name), replace(left, name=CONTRACTED)


def renamed(tile: Tile, old: str) -> Tile:
    axes = tuple(replace(axis, name=CONTRACTED) if axis.name == old else axis for axis in tile.axes)
    pads = {CONTRACTED if name == old else name: value for name, value in tile.pads.items()}
    return Tile(tile.name, axes, tile.dtype, pads, tile.exact)


LEAST_ROWS = 16
"""Rows that a product on tensor cores needs."""

DOT_ELEMENTS = 16384
"""fp32 values of the left operand of a product, of which shared memory holds two copies: the digits that tf32 keeps,
and the rest."""


def wants_dot(types: tuple[TensorType, ...]) -> bool:
    """Whether a product is fit for tensor cores: a matrix of block rows times a matrix that every block shares, or
    two matrices of one block or row that are large enough by themselves."""
    a, b = types
    _, _, contracted, columns = contraction(a, b)
    if contracted.size is None or contracted.size < 16 or not columns:
        return False
    shared = {axis.name for axis in a.axes} & {axis.name for axis in b.axes} - {contracted.name}
    if shared or len(b.axes) != 2 or b.axis("block") is not None:
        return False
    large = min(rows_of_block(types), lanes_of(columns[0].size or 1)) >= LEAST_ROWS
    return large or a.axis("block") is not None


def rows_of_block(types: tuple[TensorType, ...]) -> int:
    """Rows of such a product that one block gives."""
    return math.prod(lanes_of(axis.size) for axis in types[0].axes[:-1] if axis.size is not None)


def uses_dot(e: Emitter, number: int) -> bool:
    types = e.types(number)
    return wants_dot(types) and e.tile * rows_of_block(types) >= LEAST_ROWS


@lowers("GeMM")
def lower_gemm(e: Emitter, number: int, scope: Scope | None) -> Tile:
    node = e.function.nodes[number]
    a, b, contracted = operands_of(e, number, scope)
    if uses_dot(e, number):
        return dot(e, node, number, a, b, contracted, scope)
    return product_sum(e, node, number, a, b, contracted, scope)


def product_sum(
    e: Emitter, node: Node, number: int, a: Tile, b: Tile, contracted: Axis, scope: Scope | None
) -> Tile:
    """Sum over the contracted axis of the broadcast product; padded lanes of one operand must hold 0."""
    if e.padded(contracted) and a.pads.get(CONTRACTED) != 0.0:
        a = e.held(a, [CONTRACTED], 0.0, scope)
    if e.padded(contracted) and b.pads.get(CONTRACTED) != 0.0:
        b = e.held(b, [CONTRACTED], 0.0, scope)
    rest = [axis for axis in a.axes if axis.name != CONTRACTED]
    rest += [axis for axis in b.axes if axis.name != CONTRACTED and axis.name not in a.names]
    axes = (*rest, contracted)
    name = e.let(f"tl.sum({e.align(a, axes)} * {e.align(b, axes)}, {len(rest)})", node)
    return Tile(name, tuple(rest), "fp32")


def dot(e: Emitter, node: Node, number: int, a: Tile, b: Tile, contracted: Axis, scope: Scope | None) -> Tile:
    """[rows, contracted] @ [contracted, columns], with all other axes of `a` flattened into the rows."""
    made = dot_tiles(e, node, a, b, CONTRACTED, scope)
    assert made is not None
    return made


def dot_tiles(e: Emitter, node: Node, a: Tile, b: Tile, contracted: str, scope: Scope | None) -> Tile | None:
    """The product of two tiles over their one common axis, on tensor cores; None where it is too small for them."""
    common = a.axis(contracted)
    rows = [axis for axis in a.axes if axis.name != contracted]
    columns = [axis for axis in b.axes if axis.name != contracted]
    if common.size is None or any(count(e, axes) < LEAST_ROWS for axes in ([common], rows, columns)):
        return None
    if e.padded(common):
        a, b = e.held(a, [contracted], 0.0, scope), e.held(b, [contracted], 0.0, scope)
    depth = e.lanes(common)
    left = flattened(e, e.align(a, (*rows, common)), rows, depth, first=True)
    right = flattened(e, e.align(b, (common, *columns)), columns, depth, first=False)
    if a.exact is not None and a.exact == b.exact:
        kind = {"bf16": "tl.bfloat16", "fp16": "tl.float16"}[a.exact]
        expression = f"tl.dot(({left}).to({kind}), ({right}).to({kind}), out_dtype=tl.float32)"
    else:
        # Three tf32 products keep fp32's digits; plain tf32 would not.
        expression = f'tl.dot({left}, {right}, input_precision="tf32x3")'
        if count(e, rows) * int(depth) > DOT_ELEMENTS:
            expression = f"dot_in_halves({left}, {right})"
    name = e.let(expression, node)
    if len(rows) > 1 or len(columns) > 1:
        shape = ", ".join(e.lanes(axis) for axis in (*rows, *columns))
        name = e.let(f"tl.reshape({name}, ({shape}))", node)
    return Tile(name, (*rows, *columns), "fp32")


def count(e: Emitter, axes: Sequence[Axis]) -> int:
    """Lanes of some axes together."""
    return math.prod(e.tile if axis.size is None else int(e.lanes(axis)) for axis in axes)


def flattened(e: Emitter, name: str, axes: Sequence[Axis], depth: str, first: bool) -> str:
    """A tile of rows or columns over several axes as a matrix."""
    if len(axes) == 1:
        return name
    flat = " * ".join(e.lanes(axis) for axis in axes)
    return f"tl.reshape({name}, ({flat}, {depth}))" if first else f"tl.reshape({name}, ({depth}, {flat}))"


def dot_columns(e: Emitter, number: int) -> str | None:
    """The axis that needs 16 lanes because this product runs on tensor cores, if it does."""
    node = e.function.nodes[number]
    if node.op != "GeMM" or not uses_dot(e, number):
        return None
    _, _, contracted, columns = contraction(*e.types(number))
    assert contracted.size is not None and columns[0].size is not None
    return columns[0].name if lanes_of(columns[0].size) < 16 else None


def contracted_with(e: Emitter, number: int) -> set[str]:
    """The other name of a contracted axis that is wide under one of its names."""
    if e.function.nodes[number].op != "GeMM":
        return set()
    a, b = e.types(number)
    pair = {contraction(a, b)[2].name, (b.axes[-2] if len(b.axes) > 1 else b.axes[-1]).name}
    return pair if pair & e.wide else set()
