"""How each operator becomes Triton code. A lowering is `(emitter, node number, scope) -> Tile`."""

from __future__ import annotations

from collections.abc import Callable

from vortex.codegen.tile import Emitter, Scope, Tile

Lowering = Callable[[Emitter, int, "Scope | None"], Tile]

LOWERINGS: dict[str, Lowering] = {}


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Registers the decorated function as the lowering of the named operators."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            if name in LOWERINGS:
                raise RuntimeError(f"{name} has two lowerings")
            LOWERINGS[name] = function
        return function

    return register


from vortex.codegen.lowering import (  # noqa: E402  (they register on import)
    elementwise,
    inputs,
    matmul,
    reduce,
    row,
    select,
    shape,
)

__all__ = [
    "LOWERINGS",
    "Lowering",
    "elementwise",
    "inputs",
    "lowers",
    "matmul",
    "reduce",
    "row",
    "select",
    "shape",
]
