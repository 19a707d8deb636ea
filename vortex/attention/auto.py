"""Chooses a provider by measuring once per shape and device, before any graph is captured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import Tensor

from vortex.attention.measure import kv_bytes, made_up, time_in_graph
from vortex.attention.provider import Features, Planned, Provider, StepShape, Unsupported, require
from vortex.attention.reference import ReferenceProvider
from vortex.codegen.folder import private_folder, write_whole
from vortex.vtensor.batch import Batch
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection

L2_BYTES = 120 * 2**20  # twice that of an H200: a second replay must find nothing there
MEMORY = 2 * 2**30  # of the pools that candidates are measured with, where one layer does not need more
CALLS = 12  # in a graph, whose own launch is hidden then


def default_candidates(shape: StepShape) -> dict[str, Provider]:
    """Label -> provider; a CPU has the reference alone."""
    if shape.device.type != "cuda":
        return {"reference": ReferenceProvider()}
    from vortex.attention.flashinfer import FlashInferProvider
    from vortex.attention.triton_split import TritonProvider, schedules

    processors = torch.cuda.get_device_properties(shape.device).multi_processor_count
    candidates: dict[str, Provider] = {
        f"triton ({schedule})": TritonProvider(schedule) for schedule in schedules(shape, processors)
    }
    candidates["flashinfer (tensor cores)"] = FlashInferProvider(tensor_cores=True)
    candidates["flashinfer (no tensor cores)"] = FlashInferProvider(tensor_cores=False)
    return candidates


@dataclass(frozen=True)
class Choice:
    """label: the candidate chosen; times: microseconds by label; refused: label -> why not measured."""

    label: str
    times: dict[str, float]
    refused: dict[str, str]
    device: str

    @property
    def reason(self) -> str:
        if not self.times:
            return f"{self.label}: the only one for this shape on {self.device}"
        measured = ", ".join(f"{label} {time:.1f} us" for label, time in sorted_times(self.times))
        return f"{self.label}: fastest measured on {self.device} ({measured})"


def sorted_times(times: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda item: item[1])


@dataclass(frozen=True)
class AutoProvider:
    """candidates: label -> provider, in place of `default_candidates`; folder: where choices are kept."""

    candidates: dict[str, Provider] | None = None
    folder: Path | None = None
    name: str = "auto"
    features: frozenset[str] = frozenset({"window", "soft_cap", "sinks"})
    chosen: dict[tuple[StepShape, Features], Choice] = field(default_factory=dict, compare=False)

    def refusal(self, shape: StepShape, features: Features) -> str | None:
        candidates = self.candidates or default_candidates(shape)
        reasons = {label: lacks(provider, shape, features) for label, provider in candidates.items()}
        if any(reason is None for reason in reasons.values()):
            return None
        return "this layer with any provider: " + "; ".join(
            f"{label}: {why}" for label, why in reasons.items()
        )

    def plan(self, shape: StepShape, features: Features, layer: int | None = None) -> Planned:
        require(self, shape, features, layer)
        candidates = self.candidates or default_candidates(shape)
        choice = self.choose(candidates, shape, features)
        return PlannedAuto(candidates[choice.label].plan(shape, features, layer), choice)

    def choose(self, candidates: dict[str, Provider], shape: StepShape, features: Features) -> Choice:
        """From this process, from the user's cache, or by measuring."""
        if (shape, features) in self.chosen:
            return self.chosen[shape, features]
        refused = {label: lacks(provider, shape, features) for label, provider in candidates.items()}
        able = [label for label, reason in refused.items() if reason is None]
        why = {label: reason for label, reason in refused.items() if reason is not None}
        if len(able) == 1 or shape.device.type != "cuda":
            choice = Choice(able[0], {}, why, device_name(shape.device))
        else:
            path = (self.folder or private_folder("auto")) / f"{key(shape, features, candidates)}.json"
            choice = read(path, able) or self.measure(candidates, able, why, shape, features)
            write_whole(path, json.dumps(vars(choice), indent=1))
        self.chosen[shape, features] = choice
        return choice

    def measure(self, candidates: dict[str, Provider], able: Sequence[str], refused: dict[str, str],
                shape: StepShape, features: Features) -> Choice:  # fmt: skip
        """Times each candidate in a CUDA graph over pools larger than the L2 cache in all."""
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("auto measures providers before a graph is captured: plan this shape earlier")
        times = {}
        read = max(1, kv_bytes(shape, shape.width))
        layers = min(CALLS, max(1, -(-L2_BYTES // read), MEMORY // read))
        length = shape.width * shape.block_size
        batch, pools, selections, q = made_up(shape, length, shape.width, layers)
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        sinks = torch.zeros(q.shape[1], device=q.device) if features.sinks else None
        for label in able:
            planned = candidates[label].plan(shape, features)
            calls = [
                lambda planned=planned, pool=pool, selection=selection: planned.run(
                    q, pool, selection, batch, shape.heads.dim**-0.5, out, lse, sinks
                )
                for pool, selection in zip(pools, selections, strict=True)
            ]
            times[label] = time_in_graph([calls[number % layers] for number in range(CALLS)]).median
        return Choice(sorted_times(times)[0][0], times, refused, device_name(shape.device))


@dataclass(frozen=True)
class PlannedAuto:
    """The chosen provider's plan, with the reason of the choice."""

    planned: Planned
    choice: Choice

    @property
    def reason(self) -> str:
        return self.choice.reason

    def update(self, counts: Sequence[int]) -> None:
        self.planned.update(counts)

    def run(self, q: Tensor, pool: KVPool, selection: Selection, batch: Batch, scale: float,
            out: Tensor | None = None, lse: Tensor | None = None,
            sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
        return self.planned.run(q, pool, selection, batch, scale, out, lse, sinks)


def lacks(provider: Provider, shape: StepShape, features: Features) -> str | None:
    """Why a provider cannot plan a shape; None: it can."""
    try:
        require(provider, shape, features, None)
    except Unsupported as error:
        return str(error)
    return None


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def key(shape: StepShape, features: Features, candidates: dict[str, Provider]) -> str:
    """Names a measurement: the shape, the device, what was compared, and the versions that made it."""
    parts = [repr(shape), repr(features), device_name(shape.device), sorted(candidates), *versions().values()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def versions() -> dict[str, str | None]:
    """Of what a measurement depends on; None: not installed."""
    found: dict[str, str | None] = {}
    for package in ("vortex-attention", "torch", "triton", "flashinfer-python"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def read(path: Path, able: Sequence[str]) -> Choice | None:
    """A choice made earlier; None where there is none, or it names what cannot run now."""
    try:
        choice = Choice(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return choice if choice.label in able else None
