"""Compiles the kernels of flows for sm_90 where there is no GPU, in a process without the interpreter.

    python compile_sm90.py < cases.json

One line of JSON a kernel: its name, bytes of shared memory, bytes of stack a thread (spills), copies to shared memory
before it waits for the kernel before it, or the error.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vortex.codegen.build import Built, KernelSource, Options, build, stored_type
from vortex.codegen.templates import load_source
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_file

POINTERS = {
    "bf16": "*bf16", "fp16": "*fp16", "fp32": "*fp32", "fp8": "*fp8e4nv", "int8": "*i8", "int4": "*u8", "sign": "*u8",
    "int32": "*i32", "bool": "*i8",
}  # fmt: skip
COMMON = {
    "lengths": "*i32", "page_table": "*i32", "page_stride": "i32", "slots": "*i32", "work": "*i32",
    "work_count": "*i32", "block_ids": "*i64", "valid": "*i8", "repair": "*i32", "layer_table": "*i64",
    "requests": "i32", "finished_blocks": "*i32", "take": "*i32", "dense": "*i8",
    "ids": "*i32", "counts": "*i32", "layer": "i32", "seed": "i32", "finished_out": "*i32",
    "take_out": "*i32", "dense_out": "*i8",
}  # fmt: skip


def type_of(built: Built, source: KernelSource, name: str) -> str | None:
    """Triton's type of an argument; None for what is known when compiling."""
    if name in COMMON:
        return COMMON[name]
    if name.startswith("work_"):
        return "*i32"
    argument = next((each for each in source.arguments if each.variable == name), None)
    if argument is None:
        return None
    if argument.kind in ("stride", "width"):
        return "i32"
    if argument.kind in ("ids", "counts"):
        return "*i32"
    if argument.kind == "buffer":
        return "*i32" if built.plan.buffer(argument.name).dtype == "int32" else "*fp32"
    if argument.kind == "input" and argument.name == "q" and built.options.kv_dtype == "fp8":
        return "*bf16"
    return POINTERS[stored_type(built.program, built.options, argument)]


def functions_of(source: KernelSource) -> list[str]:
    if source.name == "summarise":
        return ["summarise_blocks", "scan_step", "summarise_step", "mark_step"]
    if source.name.startswith("fused"):
        return ["fused"]
    return ["plan_step"] if source.name == "plan" else [source.name]


def compile_one(built: Built, source: KernelSource, function: str, listed: bool) -> dict:
    kernel = getattr(load_source(source.source, source.name), function)
    schedule = source.schedule
    tile = schedule.tile if schedule and source.name != "summarise" else 1024
    values = {
        "HEADS": built.program.shape.kv_heads, "BLOCK_SIZE": built.program.policy.block_size, "BLOCKS_PER_PAGE": 1,
        "CAPACITY": 2048, "STATE_BLOCKS": 2048, "CHUNKS": 64, "TILE": tile, "LISTED": listed, "PDL": True, "SINKS": 1,
        "RECENT": 1, "DENSE_BELOW": 0, "REQUESTS": 16, "WIDTH": 65,
        "FRAME": 128, "STOCHASTIC": False, "RECALL": 16384, "PROBES": 2,
        "LAYERS": built.program.shape.layers, "FILL": 128, "PARTS": 4,
    }  # fmt: skip
    types = {name: type_of(built, source, name) or "constexpr" for name in kernel.arg_names}
    constants = {
        (at,): values[name] for at, name in enumerate(kernel.arg_names) if types[name] == "constexpr"
    }
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(kernel.arg_names)
               if types[name].startswith("*") or "stride" in name}  # fmt: skip
    options = {
        "num_warps": schedule.warps if schedule else 1,
        "num_stages": schedule.stages if schedule else 2,
    }
    made = triton.compile(
        ASTSource(kernel, types, constants, aligned), target=GPUTarget("cuda", 90, 32), options=options
    )
    before, waits, _ = made.asm["ptx"].partition("griddepcontrol.wait")
    early = before.count("cp.async.c") if waits else 0
    return {"shared": made.metadata.shared, "stack": stack(made.asm["cubin"]), "early": early}


def stack(cubin: bytes) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        shown = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    return max(int(word.partition(":")[2]) for word in shown.split() if word.startswith("STACK:"))


def main() -> None:
    for case in json.load(sys.stdin):
        shape = Shape(case["group"] * 2, 2, case["dim"], 4)
        traced = trace_file(case["path"], {"block_size": case["block"]}, shape)
        assert traced.program is not None, [each.message for each in traced.errors]
        built = build(traced.program, Options(case["kv"]))
        form = built.form(rows=128, blocks=60)
        fused = [built.fused(60)] if form is not None and form.fused else []
        for source in (*built.kernels, *fused):
            for function in functions_of(source):
                found = {"flow": Path(case["path"]).stem, **case, "kernel": function}
                try:
                    found |= compile_one(built, source, function, case.get("listed", True))
                except Exception as error:
                    while error.__cause__ is not None:
                        error = error.__cause__
                    found["error"] = f"{type(error).__name__}: {str(error)[-500:]}"
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
