"""The kernels as a Hopper GPU would get them, compiled in a process of their own (no GPU needed)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def compiled(*choices: dict) -> list[dict]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("attention_sm90.py")
    environment["PYTHONPATH"] = os.pathsep.join([str(script.parents[2]), *sys.path])
    words = [json.dumps(choice) for choice in choices]
    command = [sys.executable, "-W", "ignore", str(script), *words]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return [json.loads(line[line.rindex(' {"registers"') :]) for line in run.stdout.splitlines()]


def fine(figures: dict) -> None:
    """K and V come in 16-byte pieces, on tensor cores, with nothing spilled."""
    assert figures["local_bytes"] == 0
    wide = figures["cp_async_bytes"].get("0x10", 0) + figures["loads"].get("ld.global.v4.b32", 0)
    assert wide >= 16
    assert figures["mma"]


def test_the_shape_of_the_benchmark():
    for figures in compiled(
        {},
        {"stages": 3, "ahead": True},
        {"tile": 16, "warps": 1, "stages": 4, "ahead": True},
    ):
        fine(figures)


@pytest.mark.slow
def test_other_shapes_and_types():
    choices = [
        {"dim": dim, "tile": 32, "group": group} for dim, group in ((80, 3), (96, 16), (192, 1), (256, 7))
    ]
    choices += [
        {"walks_dense": True, "window": True, "soft_cap": True, "sinks": True},
        {"swap": True, "tile": 128},
    ]
    choices += [{"block": 1}, {"block": 128}, {"q": "fp16", "kv": "fp16"}, {"splits": 1}, {"pdl": True}]
    for figures in compiled(*choices):
        fine(figures)
    for figures in compiled({"kv": "fp8e4nv"}, {"kv": "fp8e5"}, {"q": "fp32", "kv": "fp32", "tile": 16}):
        assert figures["local_bytes"] == 0
