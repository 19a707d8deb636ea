"""Algebra that saves work."""

from __future__ import annotations

from vortex.codegen.graph import Rewrite
from vortex.dsl.ir import Program


def rewrite_algebra(program: Program) -> tuple[Program, tuple[Rewrite, ...]]:
    return program, ()
