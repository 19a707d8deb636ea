"""Every shipped algorithm means the same after all passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from flows import assert_same

from vortex.codegen.decompose import decompose
from vortex.codegen.simplify import optimise
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_file
from vortex.dsl.text import parse, print_program

ALGORITHMS = sorted((Path(__file__).parents[2] / "algorithms").glob("*.py"))
SMALL = Shape(query_heads=6, kv_heads=2, head_dim=32, layers=4)


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_a_shipped_algorithm_selects_and_remembers_the_same(path):
    program = trace_file(path, {"block_size": 16}, SMALL).program
    assert program is not None
    result, _ = optimise(program)
    primitives, _ = decompose(result)
    for each in (result, primitives):
        assert parse(print_program(each)) == each
        assert_same(program, each, seed=3, scores=False)
