"""The intermediate representation: frozen values that say everything later stages may know of a flow."""

from __future__ import annotations

from dataclasses import dataclass

from vortex.dsl.axes import Axis, TensorType

Attribute = str | int | float | bool | None | tuple["Attribute", ...]


@dataclass(frozen=True)
class Location:
    """Where in the author's file something stands: 1-based lines, 1-based columns, the end exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class Node:
    """One application of an operator. Its position in its function is its number."""

    op: str
    inputs: tuple[int, ...]
    attrs: tuple[tuple[str, Attribute], ...]
    type: TensorType
    location: Location | None = None

    def attr(self, name: str, default: Attribute = None) -> Attribute:
        return dict(self.attrs).get(name, default)


@dataclass(frozen=True)
class Store:
    """An assignment to an entry (in the cache function) or to a state (in the indexer)."""

    name: str
    value: int
    location: Location | None = None


@dataclass(frozen=True)
class Function:
    """Straight-line code: nodes in order, then stores. `result` is the attended index set of an indexer."""

    nodes: tuple[Node, ...] = ()
    stores: tuple[Store, ...] = ()
    result: int | None = None


@dataclass(frozen=True)
class Entry:
    """What the cache function keeps of each finished block, and how it is stored.

    storage  "kv" (the KV dtype, bf16 for 8-bit KV), or a dtype that `Cast` named
    """

    name: str
    axes: tuple[Axis, ...]
    storage: str


@dataclass(frozen=True)
class State:
    """What the indexer carries from one decode step to the next, per request and KV head."""

    name: str
    axes: tuple[Axis, ...]
    dtype: str
    default: float


@dataclass(frozen=True)
class Weight:
    """A `Parameter`: its axes in a flow, whether it differs by layer and KV head, and where values come from.

    init  "normal", "zeros", "ones", "uniform", "orthogonal" or "arange"; used where `file` is None
    """

    name: str
    axes: tuple[Axis, ...]
    per_layer: bool
    per_kv: bool
    dtype: str
    file: str | None
    init: str | None
    seed: int

    @property
    def axis_names(self) -> list[str]:
        """Of the whole tensor, as its file holds it."""
        return ["layer"] * self.per_layer + ["kv"] * self.per_kv + [axis.name for axis in self.axes]


@dataclass(frozen=True)
class Shape:
    """The model a flow is traced for."""

    query_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    layers: int = 32

    @property
    def group(self) -> int:
        return self.query_heads // self.kv_heads


@dataclass(frozen=True)
class Policy:
    """The hyper-parameters every flow has. Budgets and layer lists are kept as the author wrote them."""

    block_size: int = 16
    budget: str = "max(32, 12.5% * blocks)"
    sink_blocks: int = 1
    recent_blocks: int = 1
    dense_layers: str = ""
    dense_below: int | str = 0
    share_heads: bool | str = False
    reuse_steps: int = 1
    reuse_layers: int = 1


@dataclass(frozen=True)
class Program:
    """A traced flow: two functions, the tables they refer to, and the policy."""

    name: str
    file: str
    shape: Shape
    policy: Policy
    cache: Function
    indexer: Function
    entries: tuple[Entry, ...] = ()
    states: tuple[State, ...] = ()
    weights: tuple[Weight, ...] = ()

    def entry(self, name: str) -> Entry:
        return next(entry for entry in self.entries if entry.name == name)

    def state(self, name: str) -> State:
        return next(state for state in self.states if state.name == name)

    def weight(self, name: str) -> Weight:
        return next(weight for weight in self.weights if weight.name == name)
