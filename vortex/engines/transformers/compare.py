"""How sparse decoding differs from dense decoding on the same tokens."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vortex.engines.transformers.attention import NAME
from vortex.engines.transformers.model import LoadedModel

if TYPE_CHECKING:
    from vortex.engines.transformers.engine import Engine


@dataclass(frozen=True)
class Comparison:
    """Both ways are fed the same tokens, so one early difference does not spread.

    agreement  part of the steps in which both would choose the same next token; None without a step
    kl         per step, KL(dense || sparse) of the next token's distribution, nats
    """

    agreement: float | None
    kl: tuple[float, ...]

    @property
    def mean_kl(self) -> float | None:
        return sum(self.kl) / len(self.kl) if self.kl else None


def compare_dense(engine: Engine, prompt: Sequence[int], tokens: Sequence[int]) -> Comparison:
    """Feeds a prompt and what followed it to the flow and to dense attention, one token a step.

    The first of `tokens` follows from the prefill, which is dense either way: it is fed, not judged.
    """
    fed = list(tokens[:-1])
    sparse, dense = (replay(engine, prompt, fed, dense=way) for way in (False, True))
    same, kl = 0, []
    for ours, truth in zip(sparse, dense, strict=True):
        same += int(ours.argmax() == truth.argmax())
        ours, truth = ours.log_softmax(-1), truth.log_softmax(-1)
        kl.append(max(float((truth.exp() * (truth - ours)).sum()), 0.0))
    return Comparison(same / len(fed) if fed else None, tuple(kl))


def replay(engine: Engine, prompt: Sequence[int], tokens: Sequence[int], dense: bool) -> list[Tensor]:
    """Logits after each of the given tokens, fp32 on the host, [vocabulary] each."""
    if not tokens:
        return []
    with engine.open([prompt], len(tokens), dense) as session:
        return [session.step([token])[0].float().cpu() for token in tokens]


@torch.inference_mode()
def transformers_decode(
    loaded: LoadedModel, prompt: Sequence[int], new_tokens: int
) -> tuple[list[int], float]:
    """Greedy decoding by Transformers alone (scaled_dot_product_attention, its dynamic cache).

    Returns the tokens and the decoded tokens a second, prefill and first token excluded: the figure to
    print beside ours.
    """
    model = loaded.model
    # The name of the cache argument changed within Transformers 5.
    cache = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    model.set_attn_implementation("sdpa")
    try:
        ids = torch.tensor([list(prompt)], device=loaded.device)
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        tokens = [int(out.logits[0, -1].argmax())]
        started = time.perf_counter()
        while len(tokens) < new_tokens:
            ids = torch.tensor([[tokens[-1]]], device=loaded.device)
            more: dict[str, Any] = {cache: getattr(out, cache)}
            out = model(input_ids=ids, use_cache=True, logits_to_keep=1, **more)
            tokens.append(int(out.logits[0, -1].argmax()))
        took = time.perf_counter() - started
    finally:
        model.set_attn_implementation(NAME)
    return tokens, (len(tokens) - 1) / took
