"""Every kernel of the shipped algorithms compiles for an H200 where there is no GPU.

The compiler refuses what the interpreter accepts, and tells shared memory and spills.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.codegen.test_compiled import ALGORITHMS, LEAST_BLOCK, SHAPES
from tests.vtensor.test_batched_alone import USES, body

SCRIPT = Path(__file__).with_name("compile_sm90.py")
SHARED = 227 * 1024
STACK = 2560
"""Bytes a thread may spill: beyond it a kernel is slower than its memory traffic by far."""


def compiled(cases: list[dict]) -> list[dict]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], input=json.dumps(cases), env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def case(path: Path, kv: str = "bf16", group: int = 4, dim: int = 128, block: int = 16) -> dict:
    block = max(block, LEAST_BLOCK.get(path.stem, 1))
    return {"path": str(path), "kv": kv, "group": group, "dim": dim, "block": block}


def check(cases: list[dict]) -> None:
    found = compiled(cases)
    assert {each["path"] for each in found} == {each["path"] for each in cases}
    wrong = [each for each in found if "error" in each or each["shared"] > SHARED or each["stack"] > STACK]
    shown = [" ".join(str(value) for name, value in each.items() if name != "path") for each in wrong]
    assert not wrong, "\n".join(shown)
    # Triton 3.6's pipeline loads ahead of a loop: of what the kernel before writes, never before the wait for it.
    assert not [each for each in found if each["early"]]


def named(stem: str) -> Path:
    return next(path for path in ALGORITHMS if path.stem == stem)


def test_four_flows_compile():
    check(
        [
            case(named("block_topk")),
            case(named("quest_int8"), "fp8"),
            case(named("softmax_topk"), "fp16", 3, 80),
            case(named("lightning_indexer"), group=3, block=128),
            {**case(named("softmax_topk")), "listed": False},
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_every_algorithm_compiles(path):
    check([case(path)])


SPILLS = {
    2: "infllm_v2, fused, fp32, block 32: 4,360 bytes a thread",
    4: "product_quantization, dim 256, block 128: summaries compare every token with every centroid, 12,504 bytes",
    7: "infllm_v2, fused, fp8, block 64: 2,712 bytes",
    19: "magicpig, dim 256: summaries multiply a block with all tables at once, 7,472 bytes",
}
"""Shapes whose kernels compile and are right, and slower than they need be."""


def shapes():
    for number in range(len(SHAPES)):
        known = [pytest.mark.xfail(strict=True, reason=SPILLS[number])] if number in SPILLS else []
        yield pytest.param(number, marks=known)


@pytest.mark.slow
@pytest.mark.parametrize("number", list(shapes()))
def test_other_shapes_compile(number):
    """Groups 1 to 16, head dims 64 to 256, blocks of 1 to 128, in pairs; two algorithms each."""
    shape = {name: SHAPES[number][name] for name in ("group", "dim", "block")}
    kv = ("bf16", "fp16", "fp32", "fp8")[number % 4]
    check([case(ALGORITHMS[(number * step) % len(ALGORITHMS)], kv, **shape) for step in (5, 7)])


def operator_case(op: str, folder: Path) -> dict:
    path = folder / f"{op}.py"
    path.write_text(f"from vortex import *\n\n\nclass Flow(vFlow):{body(op)}")
    return case(path, group=3, dim=8, block=8)


def test_functions_of_floats_and_integers_compile(tmp_path):
    """What branches by dtype compiles its other branch too, if that is not left out."""
    check([operator_case(op, tmp_path) for op in ("FloorDiv", "Mod")])


@pytest.mark.slow
def test_every_operator_compiles(tmp_path):
    check([operator_case(op, tmp_path) for op in sorted(USES)])
