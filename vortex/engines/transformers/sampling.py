"""From logits to the next token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; otherwise logits are divided by it, then cut to the `top_k` largest (0: all),
    then to the fewest whose probability reaches `top_p`. Request i of a call draws from seed + i, so its
    draws do not depend on what else is in the batch. Raises ValueError for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature: 0 (greedy) or more, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k: 0 (all tokens) or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: above 0 and at most 1, got {self.top_p}")


class Sampler:
    """Draws tokens for the requests of one call."""

    def __init__(self, sampling: Sampling, requests: int) -> None:
        self.sampling = sampling
        self._generators = [torch.Generator().manual_seed(sampling.seed + index) for index in range(requests)]

    def pick(self, logits: Tensor, requests: list[int]) -> list[int]:
        """logits [rows, vocabulary]; requests: number of each row's request. Synchronises with the device."""
        if self.sampling.temperature == 0:
            return logits.argmax(dim=-1).tolist()
        weights = probabilities(logits.float().cpu(), self.sampling)
        return [
            int(torch.multinomial(row, 1, generator=self._generators[request]))
            for row, request in zip(weights, requests, strict=True)
        ]


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """What is drawn from: fp32 [rows, vocabulary], rows summing to 1. temperature is above 0."""
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    weights = logits.softmax(dim=-1)
    if sampling.top_p < 1:
        ordered, order = weights.sort(dim=-1, descending=True)
        # A token stays while those before it do not reach top_p: the first always does.
        out = ordered.cumsum(dim=-1) - ordered >= sampling.top_p
        weights = weights.masked_fill(torch.zeros_like(out).scatter(-1, order, out), 0.0)
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights
