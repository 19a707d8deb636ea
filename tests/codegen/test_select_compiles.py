"""The selection kernels compiled for an H200 (sm_90) where there is no GPU: wide loads, a few bytes spilled at most.

Compiled and interpreted kernels need processes of their own, so each test starts one.
"""

import os
import re
import subprocess
import sys

import pytest

SCRIPT = """
import pathlib, subprocess, sys, tempfile
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from vortex.codegen.select import LongRows
from vortex.codegen.select_launch import PIECE, Launch, default_launch, fitted, power
from vortex.codegen.templates import load_template

length, most, dtype, vector = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
launch = default_launch(length, most, 128)
types = dict(scores="*" + dtype, row_stride="i32", length_of_row="i32", finished="*i32", take="*i32", seed="i32",
             layer="i32", first_head="i32", bound="fp32", ids="*i32", counts="*i32", pool_blocks="*i32",
             page_table="*i32", page_stride="i32", guesses="*fp32", kept="*i64", kept_counts="*i32", shares="*fp32")
values = dict(ALIGN=vector, WIDTH=most + 3, FRAME=min(power(most + 3), 2048), SINKS=1, RECENT=1, KIND=0,
              DENSE_AT_TAKE=True, STOCHASTIC=False, RECALL=16384, HEADS=8, BLOCKS_PER_PAGE=1, BLOCK_SIZE=16)


def kernels():
    if isinstance(launch, Launch):
        fits = fitted(launch, length, most)
        threads = 32 * fits.warps
        lanes = max(power(length), threads * fits.each)
        options = {} if fits.registers is None else {"maxnreg": fits.registers}
        sizes = dict(THREADS=lanes // fits.each, EACH=fits.each, BINS=fits.bins, KEEP=fits.keep, MAXIMA=fits.maxima,
                     SHORT=fits.short, SHORT_EACH=fits.short_each)
        yield load_template("select.py.jinja").select_rows, sizes, {"num_warps": fits.warps, **options}
        return
    long, rows = load_template("select_long.py.jinja"), LongRows(launch, 8, length, "cpu")
    kept = dict(KEEP=launch.keep, ROOM=rows.room, SEGMENTS=rows.segments, BINS=launch.bins, MOST=launch.most,
                PIECES=launch.sample // PIECE, PIECE=PIECE, TILES=launch.tiles)
    yield long.guess_rows, kept, {"num_warps": launch.guess_warps}
    tile = dict(THREADS=launch.tile // launch.each, EACH=launch.each)
    yield long.sift_rows, kept | tile, {"num_warps": launch.sift_warps}
    threads = 32 * launch.finish_warps
    kept |= dict(THREADS=threads, EACH=launch.keep // threads)
    yield long.finish_rows, kept, {"num_warps": launch.finish_warps}


tool = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
for kernel, sizes, options in kernels():
    names, given = kernel.arg_names, values | sizes
    constants = {(at,): given.get(name) for at, name in enumerate(names) if name not in types}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names)
               if name == "row_stride" or types.get(name, "").startswith("*")}
    source = ASTSource(kernel, {name: types.get(name, "constexpr") for name in names}, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    cubin = pathlib.Path(tempfile.mkdtemp(), "kernel.cubin")
    cubin.write_bytes(compiled.asm["cubin"])
    usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True)
    print(kernel.fn.__name__, "vectors", compiled.asm["ptx"].count("v4.b32"), usage.stdout, usage.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "length, most, dtype, vector",
    [
        (512, 32, "fp32", 4),
        (2048, 125, "fp32", 4),
        (8192, 125, "fp32", 4),
        (8192, 125, "bf16", 8),
        (8192, 512, "fp32", 4),
        (32768, 512, "fp32", 4),
        (131072, 2048, "bf16", 8),
    ],
)
def test_loads_are_16_bytes_wide_and_nothing_spills(length, most, dtype, vector):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(length), str(most), dtype, str(vector)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    stacks = [int(each) for each in re.findall(r"STACK:(\d+)", done.stdout)]
    assert stacks and max(stacks) <= 64, done.stdout
    for line in re.findall(r"^\w+ vectors \d+", done.stdout, re.M):
        assert dtype != "fp32" or not line.endswith(" vectors 0"), line
