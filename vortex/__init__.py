"""Vortex: a sparse-attention method as a Python class of a few lines, run for real."""

from vortex.dsl.flow import vFlow
from vortex.dsl.ops import Positions
from vortex.dsl.parameter import Parameter
from vortex.dsl.registry import OPERATORS

__version__ = "0.1.0"

_PUBLIC = {name: declared for name, declared in OPERATORS.items() if declared.public}
globals().update(_PUBLIC)

__all__ = ["Parameter", "Positions", "vFlow", *_PUBLIC]
