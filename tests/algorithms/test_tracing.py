"""Every algorithm file traces without findings, whatever the model's shape, and its program is sound."""

from pathlib import Path

import pytest

from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_file
from vortex.dsl.text import parse, print_program
from vortex.dsl.verify import verify

FILES = sorted((Path(__file__).parents[2] / "algorithms").glob("*.py"))

SHAPES = {
    "stated default": Shape(),
    "group of 3": Shape(query_heads=9, kv_heads=3, head_dim=64, layers=30),
    "group of 1": Shape(query_heads=4, kv_heads=4, head_dim=96, layers=4),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_traces_without_findings_to_a_program_that_prints_and_parses(file, shape):
    traced = trace_file(file, shape=shape)
    assert [str(finding) for finding in traced.findings] == []
    assert traced.program is not None
    verify(traced.program)
    assert parse(print_program(traced.program)) == traced.program
