"""The attention layers of a model that SGLang loaded: their K and V, and how they scale logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vortex.engines.sglang.errors import StartError
from vortex.vtensor.pool import KVPool


def attention_layers(model: Any) -> list[Any]:
    """The RadixAttention of each layer, in order; they were checked."""
    from sglang.srt.layers.radix_attention import RadixAttention

    found = [each for each in model.modules() if isinstance(each, RadixAttention)]
    return sorted(found, key=lambda each: each.layer_id)


def logit_scale(layers: list[Any]) -> float:
    """Factor of the logits, one for all layers. Raises StartError."""
    scales = sorted({float(layer.scaling) for layer in layers})
    if len(scales) > 1:
        raise StartError("scales-differ", found=", ".join(f"{each:g}" for each in scales))
    return scales[0]


def key_value_pools(pool: Any, layers: list[Any], page_size: int) -> list[KVPool]:
    """K and V of each layer, with the model's scales of 8-bit values. Raises StartError."""
    found = []
    for layer in layers:
        number = layer.layer_id
        tensors = {"k": pool.get_key_buffer(number), "v": pool.get_value_buffer(number)}
        for name, tensor in tensors.items():
            if tensor.ndim != 3 or tensor.dtype != pool.dtype:
                lies = f"{tuple(tensor.shape)} of {tensor.dtype}"
                raise StartError("pool-layout", name=name, found=lies, layer=number)
        scales = None
        if pool.dtype.itemsize == 1:
            scales = {"k": layer.k_scale_float or 1.0, "v": layer.v_scale_float or 1.0}
        found.append(KVPool(tensors, page_size, scales))
    return found


def refuse_arguments(layer: int, arguments: Mapping[str, Any]) -> None:
    """Raises StartError for what a model hands to attention beyond q, k and v."""
    for name, value in arguments.items():
        if value is not None:
            raise StartError("attention-feature", layer=layer, words=f"the argument {name}")
