"""`vFlow`, the class that an author derives from, and its hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from typing import Any

from vortex.dsl.diagnostics import nearest
from vortex.dsl.ir import Policy
from vortex.dsl.parameter import Parameter
from vortex.dsl.trace import RECORDER

READS: ContextVar[set[str] | None] = ContextVar("READS", default=None)
"""Attributes that methods read while they are traced."""

POLICY = tuple(each.name for each in fields(Policy))


class FlowType(type):
    """Notes which class attributes a traced method reads, and refuses what it would put there."""

    def __getattribute__(cls, name: str) -> Any:
        reads = READS.get()
        if reads is not None:
            reads.add(name)
        return super().__getattribute__(name)

    def __setattr__(cls, name: str, value: object) -> None:
        recorder = RECORDER.get()
        if recorder is not None:
            recorder.report("self-state", name=name)
        super().__setattr__(name, value)

    def __getattr__(cls, name: str) -> Any:
        return _missing(cls, name)


def _missing(flow: type, name: str) -> Any:
    """Reports an attribute that a traced method reads and no class defines, and goes on."""
    recorder = RECORDER.get()
    if recorder is None or (name.startswith("__") and name.endswith("__")):
        raise AttributeError(f"{flow.__name__} has no attribute {name}")
    known = [each for base in flow.__mro__ for each in vars(base) if not each.startswith("_")]
    recorder.report("unknown-attribute", flow=flow.__name__, name=name, near=nearest(name, [*known, "scale"]))
    return recorder.unknown()


class vFlow(metaclass=FlowType):
    """A sparse-attention method: `forward_cache(c)` summarises a finished block, `forward_indexer(q, c)` selects.

    Class attributes are hyper-parameters; these every flow has:

    block_size     tokens of a block, a power of two
    budget         blocks attended in all: an integer or an expression over blocks, tokens, block_size, layer, layers
    sink_blocks    first blocks that are always attended
    recent_blocks  last blocks before the current one that are always attended
    dense_layers   layers attended densely: numbers and ranges, e.g. "0-1, 5, 30-"
    dense_below    requests shorter than this many tokens are attended densely; "auto" measures it
    share_heads    False, or how the KV heads' scores are combined before selecting: "sum", "mean" or "max"
    reuse_steps    decode steps that use one selection. With r, a request of L tokens selects anew when L - 1 is
                   a multiple of r, at its first decode step, and after a step in which it was attended densely;
                   at other steps it attends the last selection joined with the blocks that are reserved now and
                   the current one. A block that finished meanwhile is attended only if it is one of these.
    reuse_layers   consecutive layers that use one selection: layer l attends what layer l - l % reuse_layers
                   selected in the same step. Layers and rows that are dense stay dense. A flow with state
                   reuses nothing: its state would miss steps.
    """

    block_size: int = 16
    budget: int | str = "max(32, 12.5% * blocks)"
    sink_blocks: int = 1
    recent_blocks: int = 1
    dense_layers: str = ""
    dense_below: int | str = 0
    share_heads: bool | str = False
    reuse_steps: int = 1
    reuse_layers: int = 1

    scale: float
    """1 / sqrt(dim) of the model: what attention multiplies q k^T with."""

    def __getattribute__(self, name: str) -> Any:
        reads = READS.get()
        if reads is not None:
            reads.add(name)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        recorder = RECORDER.get()
        if recorder is not None:
            recorder.report("self-state", name=name)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        return _missing(type(self), name)


def own_attributes(flow: type[vFlow]) -> dict[str, Any]:
    """The author's hyper-parameters: class attributes that are neither methods nor Parameters nor private."""
    found: dict[str, Any] = {}
    for each in reversed(flow.__mro__[: flow.__mro__.index(vFlow)]):
        for name, value in vars(each).items():
            hidden = (
                name.startswith("_")
                or name in POLICY
                or name in ("scale", "forward_cache", "forward_indexer")
            )
            if (
                not hidden
                and not callable(value)
                and not isinstance(value, Parameter | staticmethod | classmethod | property)
            ):
                found[name] = value
    return found


@contextmanager
def settings(flow: type[vFlow], values: Mapping[str, Any]) -> Iterator[None]:
    """The class with other attribute values, restored afterwards.

    A base class that defines the attribute gets the value as well: its methods may read it by its name.
    """
    bases = flow.__mro__[1 : flow.__mro__.index(vFlow)]
    places = [
        (each, name) for name in values for each in (flow, *(base for base in bases if name in vars(base)))
    ]
    before = {(each, name): vars(each)[name] for each, name in places if name in vars(each)}
    try:
        for each, name in places:
            type.__setattr__(each, name, values[name])
        yield
    finally:
        for each, name in places:
            if (each, name) in before:
                type.__setattr__(each, name, before[each, name])
            elif name in vars(each):
                type.__delattr__(each, name)
