"""Emission of straight-line Triton code for the nodes of a function: tiles, scopes, and the emitter.

A value of the IR becomes a tile: a Triton tensor with one dimension an axis, each padded to a power of two lanes.
What padded lanes hold is known per axis (`pads`), so that a mask is written only where a consumer needs another
value. The order of a tile's dimensions is its own affair: axes are found by name, and a transpose costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vortex.codegen.comments import safe_comment
from vortex.dsl.axes import Axis, TensorType, computed
from vortex.dsl.ir import Function, Node
from vortex.dsl.registry import OPERATORS, Pads

TRITON = {"fp32": "tl.float32", "int32": "tl.int32", "bool": "tl.int1"}


def lanes_of(size: int) -> int:
    """Lanes of an axis of this size: the next power of two."""
    return 1 << max(size - 1, 0).bit_length()


@dataclass(frozen=True)
class Tile:
    """A value in registers.

    name   expression of the Triton tensor, cheap to repeat (a variable or a number)
    axes   one a dimension, in the order of the dimensions; none for a scalar
    dtype  "fp32", "int32" or "bool"
    pads   axis name -> what lanes beyond the axis hold, where that is known
    exact  "bf16" or "fp16" where every lane is a value of that type: products may then run on it
    """

    name: str
    axes: tuple[Axis, ...]
    dtype: str
    pads: Mapping[str, float | None] = field(default_factory=dict)
    exact: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    def axis(self, name: str) -> Axis:
        return next(axis for axis in self.axes if axis.name == name)


@dataclass
class Scope:
    """Where code for values with a block axis stands.

    subset  node of the index set whose members the lanes are, None for all blocks
    block   expression [lanes]: block numbers of the request
    member  expression [lanes]: positions within the domain; equal to `block` for all blocks
    valid   expression [lanes]: which lanes exist
    size    expression: members of the domain
    whole   whether the tile holds the whole row, so that reductions over block end in it
    """

    subset: int | None
    block: str
    member: str
    valid: str
    size: str
    whole: bool = False
    memo: dict[int, Tile] = field(default_factory=dict)


class Emitter:
    """Writes the code of one kernel.

    function      the function whose nodes are evaluated
    tile          blocks of a tile: the number that the kernel's TILE will be
    early         where lines go that need nothing of the kernel before this one, if there is such a place
    leaf          how leaves are read; materialised: how values that another kernel kept are read, by node
    wide          axes that have at least 16 lanes because products on tensor cores need them
    """

    def __init__(self, function: Function, file: str, tile: int = 1) -> None:
        self.function = function
        self.file = file
        self.tile = tile
        self.preamble: list[str] = []
        self.body: list[str] = []
        self.early: list[str] | None = None
        self.rows: dict[int, Tile] = {}
        self.materialised: dict[int, Callable[[Emitter, int, Scope | None, dict[str, Tile]], Tile]] = {}
        self.leaf: Callable[[Emitter, int, Scope | None, dict[str, Tile]], Tile] | None = None
        self.wide: set[str] = set()
        self.counter = 0
        self.in_row = False

    # Lines and names

    def fresh(self, stem: str = "v") -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def line(self, text: str, node: Node | None = None) -> None:
        """A statement; beside it the author's line that it came from."""
        where = self.preamble if self.in_row else self.body
        if node is not None and node.location is not None:
            text = f"{text}  # {safe_comment(self.file)}:{node.location.line}"
        where.append(text)

    def let(self, expression: str, node: Node | None = None, stem: str = "v") -> str:
        name = self.fresh(stem)
        self.line(f"{name} = {expression}", node)
        return name

    # Lanes and masks

    def lanes(self, axis: Axis) -> str:
        if axis.size is None:
            return "TILE"
        count = lanes_of(axis.size)
        return str(max(count, 16) if axis.name in self.wide else count)

    def padded(self, axis: Axis) -> bool:
        """Whether a tile has lanes beyond the axis."""
        return axis.size is None or int(self.lanes(axis)) != axis.size

    def index(self, axis: Axis, axes: Sequence[Axis], scope: Scope | None) -> str:
        """Positions along one axis, shaped to broadcast against a tile over `axes`."""
        if axis.size is None:
            assert scope is not None
            base = scope.member
        else:
            base = f"tl.arange(0, {self.lanes(axis)})"
        return self.spread(base, axis, axes)

    def spread(self, base: str, axis: Axis, axes: Sequence[Axis]) -> str:
        if len(axes) == 1:
            return base
        at = [each.name for each in axes].index(axis.name)
        return f"({base})[{', '.join(':' if place == at else 'None' for place in range(len(axes)))}]"

    def mask(
        self, axes: Sequence[Axis], scope: Scope | None, only: Sequence[str] | None = None
    ) -> str | None:
        """Which lanes of a tile over `axes` exist, looking at the padded ones (of the named) axes."""
        terms = []
        for axis in axes:
            if (only is not None and axis.name not in only) or not self.padded(axis):
                continue
            if axis.size is None:
                assert scope is not None
                terms.append(self.spread(scope.valid, axis, axes))
            else:
                terms.append(f"({self.index(axis, axes, scope)} < {axis.size})")
        return " & ".join(terms) if terms else None

    def held(self, tile: Tile, axes: Sequence[str], value: float, scope: Scope | None) -> Tile:
        """The tile with `value` in the padded lanes of the given axes: a mask only where they may hold another."""
        wrong = [
            name
            for name in axes
            if self.padded(tile.axis(name)) and not same_number(tile.pads.get(name), value)
        ]
        if not wrong:
            return tile
        mask = self.mask(tile.axes, scope, wrong)
        name = self.let(f"tl.where({mask}, {tile.name}, {number(value, tile.dtype)})")
        return Tile(name, tile.axes, tile.dtype, {**tile.pads, **dict.fromkeys(wrong, value)}, tile.exact)

    # Alignment

    def align(self, tile: Tile, axes: Sequence[Axis]) -> str:
        """An expression of the tile that broadcasts against a tile over `axes` (a superset of its own)."""
        if not tile.axes:
            return tile.name
        wanted = [axis.name for axis in axes]
        order = [name for name in wanted if name in tile.names]
        name = tile.name
        if order != list(tile.names):
            name = f"tl.permute({name}, ({', '.join(str(tile.names.index(each)) for each in order)}))"
        if len(order) == len(wanted):
            return name
        slots = ", ".join(":" if each in order else "None" for each in wanted)
        return f"{name}[{slots}]"

    def full(self, tile: Tile, axes: Sequence[Axis]) -> str:
        """As `align`, with every dimension at its full number of lanes."""
        shape = f"({', '.join(self.lanes(axis) for axis in axes)}{',' if len(axes) == 1 else ''})"
        if not axes:
            return tile.name
        if not tile.axes:
            return (
                f"tl.full({shape}, 0, {TRITON[tile.dtype]}) + {tile.name}"
                if tile.dtype != "bool"
                else (f"(tl.full({shape}, 0, tl.int32) + ({tile.name}).to(tl.int32)) != 0")
            )
        aligned = self.align(tile, axes)
        return aligned if len(tile.axes) == len(axes) else f"tl.broadcast_to({aligned}, {shape})"

    def cast(self, tile: Tile, dtype: str) -> Tile:
        if tile.dtype == dtype:
            return tile
        name = tile.name
        if dtype == "bool":
            return Tile(f"({name} != 0)", tile.axes, dtype, _truth(tile.pads))
        if tile.axes or not name.lstrip("-").replace(".", "").isdigit():
            name = f"({name}).to({TRITON[dtype]})"
        else:
            name = number(float(name), dtype)
        return Tile(name, tile.axes, dtype, tile.pads)

    # Evaluation

    def evaluate(self, number_: int, scope: Scope | None) -> Tile:
        """The tile of a node: emitted on first use, in the preamble of the row where it has no block axis."""
        node = self.function.nodes[number_]
        in_row = node.type.axis("block") is None
        memo = self.rows if in_row else scope.memo  # type: ignore[union-attr]
        if number_ in memo:
            return memo[number_]
        before = self.in_row
        # A value without a block axis that ends a reduction of the whole tile belongs to the body.
        self.in_row = in_row and not (scope is not None and scope.whole and self.touches_block(number_))
        if number_ in self.materialised:
            tile = self.materialised[number_](self, number_, scope, {})
        else:
            from vortex.codegen.lowering import LOWERINGS

            tile = LOWERINGS[node.op](self, number_, scope)
        self.in_row = before
        memo[number_] = tile
        return tile

    def touches_block(self, number_: int) -> bool:
        """Whether a node depends on a value with a block axis."""
        node = self.function.nodes[number_]
        if node.type.axis("block") is not None:
            return True
        return number_ not in self.materialised and any(self.touches_block(each) for each in node.inputs)

    def operands(self, number_: int, scope: Scope | None) -> list[Tile]:
        return [self.evaluate(each, scope) for each in self.function.nodes[number_].inputs]

    def types(self, number_: int) -> tuple[TensorType, ...]:
        nodes = self.function.nodes
        return tuple(nodes[each].type for each in nodes[number_].inputs)

    def pads(self, number_: int, tiles: Sequence[Tile]) -> Pads:
        """The padding contract of the node's operator, applied to what its operands hold."""
        node = self.function.nodes[number_]
        return OPERATORS[node.op].pads(node, self.types(number_), tuple(dict(tile.pads) for tile in tiles))


def _truth(pads: Mapping[str, float | None]) -> Pads:
    return {name: None if value is None else float(value != 0) for name, value in pads.items()}


def same_number(a: float | None, b: float) -> bool:
    return a is not None and float(a) == float(b)


def number(value: float, dtype: str) -> str:
    """A literal of the given dtype."""
    if dtype == "bool":
        return "True" if value else "False"
    if dtype == "int32":
        if value in (float("inf"), float("-inf")):
            return "2147483647" if value > 0 else "-2147483648"
        return str(int(value))
    if value != value or value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return repr(float(value))


def kind_of(type_: TensorType) -> str:
    """The dtype in which a value of this type sits in registers."""
    return computed(type_.dtype)
