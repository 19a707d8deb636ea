"""The IR, the plan and the kernels of two algorithms, as text: `VORTEX_ACCEPT=1 pytest tests/codegen/test_golden.py`
writes what is there now, and a reviewer reads the difference."""

import os
from pathlib import Path

import pytest

from vortex.codegen.build import build
from vortex.codegen.show import show_plan
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_source
from vortex.dsl.source import Source
from vortex.dsl.text import print_program

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
SHAPE = Shape(query_heads=32, kv_heads=8, head_dim=128, layers=28)


def texts(name: str) -> dict[str, str]:
    """File name -> what it should hold."""
    path = ROOT / "algorithms" / f"{name}.py"
    traced = trace_source(Source(path.name, path.read_text()), shape=SHAPE)
    assert traced.program is not None
    built = build(traced.program)
    return {
        f"{name}.ir.txt": print_program(traced.program),
        f"{name}.plan.txt": show_plan(built),
        **{f"{name}.{kernel.name}.py": kernel.source for kernel in built.kernels},
    }


@pytest.mark.parametrize("name", ["block_topk", "softmax_topk"])
def test_golden(name):
    expected = texts(name)
    if os.environ.get("VORTEX_ACCEPT"):
        GOLDEN.mkdir(exist_ok=True)
        for old in GOLDEN.glob(f"{name}.*"):
            old.unlink()
        for file, text in expected.items():
            (GOLDEN / file).write_text(text)
    held = {path.name: path.read_text() for path in GOLDEN.glob(f"{name}.*")}
    assert sorted(held) == sorted(expected)
    for file, text in expected.items():
        assert held[file] == text, f"{file} differs: VORTEX_ACCEPT=1 writes it anew"
