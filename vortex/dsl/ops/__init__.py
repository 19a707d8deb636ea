"""The operators, a family a file. Importing this package fills the registry."""

from vortex.dsl.ops import (
    attention,
    elementwise,
    inputs,
    matmul,
    reduce,
    row,
    select,
    shape,
)

__all__ = ["attention", "elementwise", "inputs", "matmul", "reduce", "row", "select", "shape"]
