"""Compiles the attention kernels for sm_90 on a machine without a GPU; run it in a process of its own.

Prints one JSON object per schedule: registers, spilled bytes, shared memory, and the global loads by width.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vortex.attention.source import load

POINTERS = {
    "q_ptr": "q", "k_ptr": "kv", "v_ptr": "kv", "out_ptr": "q", "ids_ptr": "i32", "counts_ptr": "i32",
    "dense_ptr": "i1", "lengths_ptr": "i32", "pages_ptr": "i32", "sinks_ptr": "fp32", "parts_ptr": "fp32",
    "peaks_ptr": "fp32", "totals_ptr": "fp32", "lse_ptr": "fp32",
}  # fmt: skip
FLOATS = {"scale", "v_scale", "soft_cap"}
UNALIGNED = {"window", "width", "lse_request", "lse_head", "pages_request"}


def compile_kernel(kernel, constants, q="bf16", kv="bf16", warps=4, stages=2, pdl=False):
    """A compiled kernel and its figures. Strides are taken to be multiples of 16, as an engine's are."""
    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in POINTERS:
            signature[name] = "*" + {"q": q, "kv": kv}.get(POINTERS[name], POINTERS[name])
        elif name in constants:
            signature[name] = "constexpr"
            continue
        else:
            signature[name] = "fp32" if name in FLOATS else "i32"
        if name not in FLOATS | UNALIGNED:
            attributes[(index,)] = [["tt.divisibility", 16]]
    used = {name: value for name, value in constants.items() if name in kernel.arg_names}
    source = ASTSource(kernel, signature, used, attributes)
    options = {"num_warps": warps, "num_stages": stages} | ({"launch_pdl": True} if pdl else {})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def figures(compiled) -> dict[str, object]:
    ptx = compiled.asm["ptx"]
    widths = Counter(re.findall(r"(cp\.async\.\w+\.shared\.global|ld\.global[\w.:]*)", ptx))
    bulk = Counter(re.findall(r"cp\.async\.c[ga]\.shared\.global \[[^\]]*\], \[[^\]]*\], (0x[0-9a-f]+)", ptx))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run([tool("cuobjdump"), "-res-usage", file.name], capture_output=True, text=True)
    registers = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage.stdout + usage.stderr)
    return {
        "registers": int(registers[1]) if registers else None,
        "local_bytes": int(registers[2]) + int(registers[4]) if registers else None,
        "shared_bytes": compiled.metadata.shared,
        "loads": dict(widths),
        "cp_async_bytes": dict(bulk),
        "mma": sorted(set(re.findall(r"(wgmma\.mma_async\S+|mma\.sync\S+)", ptx))),
    }


def tool(name: str) -> str:
    """A binary that Triton brings along."""
    from pathlib import Path

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def attend(dim=128, group=4, block=16, tile=64, stages=2, warps=4, splits=8, q="bf16", kv="bf16",
           swap=False, ahead=False, pdl=False, **features):  # fmt: skip
    options = {"walks_dense": False, "window": False, "soft_cap": False, "sinks": False} | features
    options["in_block"] = tile <= block
    module = load("attend.py.jinja", swap=swap, ahead=ahead, pdl=pdl, merge=splits > 1, **options)
    pad = 1 << (dim - 1).bit_length()
    constants = {
        "KV_HEADS": 8, "GROUP": group, "GROUP_PAD": max(16, 1 << (group - 1).bit_length()), "DIM": dim,
        "DIM_PAD": pad, "BLOCK": block, "PAGE": block, "TILE": tile, "SPLITS": splits,
    }  # fmt: skip
    return compile_kernel(module.attend, constants, q, kv, warps, stages, pdl)


if __name__ == "__main__":
    for words in sys.argv[1:] or ["{}"]:
        print(words, json.dumps(figures(attend(**json.loads(words)))))
