"""The selection kernels compiled for an H200 (sm_90) where there is no GPU: wide loads, no spills.

Compiled and interpreted kernels need processes of their own, so each test starts one.
"""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import pathlib, subprocess, sys, tempfile
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from vortex.codegen.select import default_launch
from vortex.codegen.templates import load_template

lanes, dtype, vector = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
launch = default_launch(lanes, 128)
kernel = load_template("select.py.jinja").select_rows
types = dict(scores="*" + dtype, row_stride="i32", length_of_row="i32", finished="*i32", take="*i32", seed="i32",
             layer="i32", first_head="i32", bound="fp32", ids="*i32", counts="*i32", pool_blocks="*i32",
             page_table="*i32", page_stride="i32", kept="*i64", maxima_stride="i32", groups_of_row="i32")
values = dict(LANES=lanes, ALIGN=vector, WIDTH=128, FRAME=128, GROUP=8, MAXIMA=0, LISTED=128, PARTS=1, KEEP=256,
              MOST=launch.most, BINS=launch.bins, SINKS=1, RECENT=1, KIND=0, DENSE_AT_TAKE=True, PROBES=launch.probes,
              STOCHASTIC=False, RECALL=16384, HEADS=8, BLOCKS_PER_PAGE=1, BLOCK_SIZE=16)
names = kernel.arg_names
constants = {(at,): values.get(name) for at, name in enumerate(names) if name not in types}
aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names)
           if name == "row_stride" or types.get(name, "").startswith("*")}
source = ASTSource(kernel, {name: types.get(name, "constexpr") for name in names}, constants, aligned)
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": launch.warps})
cubin = pathlib.Path(tempfile.mkdtemp(), "kernel.cubin")
cubin.write_bytes(compiled.asm["cubin"])
tool = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True)
print("vectors", compiled.asm["ptx"].count("v4.b32"), usage.stdout, usage.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lanes, dtype, vector", [(2048, "fp32", 4), (8192, "fp32", 4), (8192, "bf16", 8)])
def test_loads_are_16_bytes_wide_and_nothing_spills(lanes, dtype, vector):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(lanes), dtype, str(vector)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "STACK:0" in done.stdout, done.stdout
    assert "vectors 0" not in done.stdout
