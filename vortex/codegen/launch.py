"""Kernels of a built flow as functions, and what each of their arguments stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vortex.codegen.build import Built, KernelSource
from vortex.codegen.memory import Argument
from vortex.codegen.storage import DeviceStorage, Workspace, torch_dtype
from vortex.codegen.templates import load_source
from vortex.vtensor.pool import KVPool

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor


class Kernels:
    """Loads generated modules when they are first launched, and looks arguments up by name.

    weights  values of the flow's parameters, [layers,] [kv heads,] axes…
    """

    def __init__(self, built: Built, weights: dict[str, Tensor]) -> None:
        self.built = built
        self.weights = weights
        self.modules: dict[str, ModuleType] = {}
        self.scales: dict[tuple[float, str], Tensor] = {}

    def move_weights(self, device: Any) -> None:
        """Parameters to the device, in their dtype, contiguous: kernels address them by their shape alone."""
        dtypes = {name: torch_dtype(self.built.program.weight(name).dtype) for name in self.weights}
        self.weights = {
            name: value.to(device, dtypes[name]).contiguous() for name, value in self.weights.items()
        }

    def function(self, source: KernelSource, name: str | None = None) -> Any:
        """A kernel of a generated module; by default the one that is called like it."""
        if source.name not in self.modules:
            self.modules[source.name] = load_source(source.source, source.name)
        return getattr(self.modules[source.name], name or source.name)

    def values(
        self, source: KernelSource, storage: DeviceStorage, layer: int, q: Tensor | None, pool: KVPool,
        space: Workspace | None,
    ) -> list[Any]:  # fmt: skip
        """All arguments of a kernel, in order."""
        return [self.value(each, storage, layer, q, pool, space) for each in source.arguments]

    def value(
        self, argument: Argument, storage: DeviceStorage, layer: int, q: Tensor | None, pool: KVPool,
        space: Workspace | None = None,
    ) -> Any:  # fmt: skip
        """What one argument stands for."""
        kind, name = argument.kind, argument.name
        if kind == "input":
            return q if name == "q" else pool.tensors[name]
        if kind == "stride":
            source, axis = name.rsplit("_", 1)
            tensor = q if source == "q" else pool.tensors[source]
            assert tensor is not None
            return tensor.stride({"row": 0, "slot": 0, "head": 1}[axis])
        if kind == "scale":
            return self._scale(pool, name)
        if kind in ("entry", "entry_scale", "state"):
            held = {"entry": storage.entries, "entry_scale": storage.scales, "state": storage.states}[kind]
            return held[layer][name]
        if kind == "weight":
            weight = self.weights[name]
            return weight[layer] if self.built.program.weight(name).per_layer else weight
        assert space is not None
        if kind == "buffer":
            return space.buffers[name]
        made = space.sets[int(name)]
        return {"ids": made.out.ids, "counts": made.out.counts, "width": made.width}[kind]

    def _scale(self, pool: KVPool, name: str) -> Tensor:
        """The factor of 8-bit values as a device scalar, made once."""
        import torch

        key = (pool.scale(name), str(pool.tensors[name].device))
        if key not in self.scales:
            self.scales[key] = torch.tensor([key[0]], dtype=torch.float32, device=pool.tensors[name].device)
        return self.scales[key]
