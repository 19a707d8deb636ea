"""Where sparse decoding begins to pay: measured once per flow, shape and device, before a graph is captured."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from vortex.attention import auto
from vortex.attention.auto import device_name, sorted_times
from vortex.attention.dense import dense_kernels
from vortex.attention.measure import kv_bytes
from vortex.attention.provider import Features, Provider, StepShape
from vortex.attention.rig import MEMORY, Rig
from vortex.attention.step import StepOptions
from vortex.codegen.compiled import CompiledFlow
from vortex.codegen.folder import private_folder, write_whole
from vortex.dsl.text import print_program

FIRST = 1024
"""Tokens at which the search begins; it doubles from there."""


@dataclass(frozen=True)
class Crossing:
    """dense_below: tokens below which dense attention is the faster; points: tokens -> us of a layer, sparse and
    dense, with the dense kernel's label."""

    dense_below: int
    points: dict[str, tuple[float, float, str]]
    device: str

    @property
    def reason(self) -> str:
        told = "; ".join(
            f"{tokens} tokens: sparse {sparse:.1f} us, dense {dense:.1f} us ({label})"
            for tokens, (sparse, dense, label) in self.points.items()
        )
        return f"measured on {self.device}: {told}"


def crossover(
    flow: CompiledFlow,
    shape: StepShape,
    max_tokens: int,
    provider: Provider | None = None,
    folder: Path | None = None,
) -> Crossing:
    """From the user's cache, or by measuring batches of one length, doubled until sparse is the faster.

    shape: of the engine's step; `max_tokens` of the longest request that may come.
    """
    _outside_capture()
    name = _key(print_program(flow.program), flow.built.options, shape, max_tokens, provider)
    path = (folder or private_folder("auto")) / f"crossover-{name}.json"
    try:
        return Crossing(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        found = _search(flow, shape, max_tokens, provider)
    write_whole(path, json.dumps(asdict(found), indent=1))
    return found


def _search(flow: CompiledFlow, shape: StepShape, max_tokens: int, provider: Provider | None) -> Crossing:
    points: dict[str, tuple[float, float, str]] = {}

    def pays(length: int) -> bool:
        points[str(length)] = measured = compare(flow, shape, length, max_tokens, provider)
        return measured[0] <= measured[1]

    length, last = min(FIRST, max_tokens), 0
    while not pays(length):
        if length == max_tokens:
            return Crossing(max_tokens + 1, points, device_name(shape.device))
        last, length = length, min(2 * length, max_tokens)
    middle = (last + length) // 2 // shape.block_size * shape.block_size
    if last and middle > last and pays(middle):
        length = middle
    return Crossing(length if last else 0, points, device_name(shape.device))


def compare(
    flow: CompiledFlow, shape: StepShape, length: int, max_tokens: int, provider: Provider | None
) -> tuple[float, float, str]:
    """us of one layer at a length: sparse, the fastest dense kernel, its label."""
    rig = Rig(flow, shape, length)
    step = rig.step(StepOptions(provider=provider, dense_below=0, max_tokens=max_tokens))
    if all(step.whole):
        sparse = float("inf")
    else:
        sparse = rig.time_step(step, kv_bytes(shape, shape.width)).median
    times = {label: rig.time_dense(label).median for label in dense_kernels(rig.shape, Features())}
    rig.forget()
    label, dense = sorted_times(times)[0]
    return sparse, dense, label


CHOSEN: dict[str, tuple[str, str]] = {}


def fastest_dense(
    shape: StepShape, features: Features, length: int, folder: Path | None = None
) -> tuple[str, str]:
    """Label of the fastest of `dense_kernels` at a length, and why. Kept like a provider's choice."""
    labels = list(dense_kernels(shape, features))
    if len(labels) == 1:
        return labels[0], f"the only one on {device_name(shape.device)}"
    _outside_capture()
    name = _key("dense", features, replace(shape, width=1), length, labels)
    if name not in CHOSEN:
        path = (folder or private_folder("auto")) / f"dense-{name}.json"
        try:
            times = {str(label): float(time) for label, time in json.loads(path.read_text()).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            rig = Rig(None, shape, length, memory=MEMORY)
            times = {label: rig.time_dense(label).median for label in labels}
            write_whole(path, json.dumps(times, indent=1))
        told = ", ".join(f"{label} {time:.1f} us" for label, time in sorted_times(times))
        reason = f"fastest at {length} tokens on {device_name(shape.device)} ({told})"
        CHOSEN[name] = (sorted_times(times)[0][0], reason)
    return CHOSEN[name]


def _outside_capture() -> None:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "dense and sparse attention are compared before a graph is captured: make the step earlier"
        )


def _key(*parts: object) -> str:
    versions = auto.versions()
    return hashlib.sha256(json.dumps([*map(repr, parts), versions]).encode()).hexdigest()[:24]
