"""A plugin of SGLang for models without weights: random ones of a real model's scale.

SGLang's dummy weights lie within 1e-3, so that what a model says hardly depends on its attention.
"""

from __future__ import annotations

from typing import Any

import torch

SCALE = 0.02


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.model_loader.weight_utils.initialize_dummy_weights"
    HookRegistry.register(target, fill, HookType.AFTER)


@torch.no_grad()
def fill(result: None, model: torch.nn.Module, *args: Any, **named: Any) -> None:
    """Normal weights, norms of one, the same in every process that has the same shapes."""
    for number, (name, weight) in enumerate(sorted(model.named_parameters())):
        if not weight.is_floating_point():
            continue
        if "norm" in name:
            weight.fill_(1.0)
        else:
            generator = torch.Generator(device=weight.device).manual_seed(number)
            weight.normal_(0.0, SCALE, generator=generator)
