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
from vortex.engines.transformers.counters import Counters
from vortex.engines.transformers.model import LoadedModel
from vortex.engines.transformers.recall import Recall

if TYPE_CHECKING:
    from vortex.engines.transformers.engine import Engine


@dataclass(frozen=True)
class Comparison:
    """Both ways are fed the same tokens, so one early difference does not spread.

    agreement  part of the steps in which both would choose the same next token; None without a step
    kl         per step, KL(truth || ours) of the next token's distribution, nats; truth: dense attention, or the
               other flow
    """

    agreement: float | None
    kl: tuple[float, ...]

    @property
    def mean_kl(self) -> float | None:
        return sum(self.kl) / len(self.kl) if self.kl else None


@dataclass(frozen=True)
class Replay:
    """What one way of decoding did over given tokens.

    logits    fp32 [tokens, vocabulary], on the host: after each of the tokens
    counters  how much of the cache these steps read
    recalls   of the sampled steps
    """

    logits: Tensor
    counters: Counters
    recalls: tuple[Recall, ...]

    @property
    def recall(self) -> float | None:
        """Mean recall of attention mass over the sampled steps; None if none was sampled."""
        return sum(each.mean for each in self.recalls) / len(self.recalls) if self.recalls else None

    def against(self, truth: Replay) -> Comparison:
        """How this way differs from another on the same tokens: `truth` is the dense one, or another flow."""
        if self.logits.shape != truth.logits.shape:
            raise ValueError(
                f"replays of {len(self.logits)} and {len(truth.logits)} tokens: replay the same tokens in both"
            )
        same = (self.logits.argmax(-1) == truth.logits.argmax(-1)).float().mean()
        ours, theirs = self.logits.log_softmax(-1), truth.logits.log_softmax(-1)
        kl = (theirs.exp() * (theirs - ours)).sum(-1).clamp(min=0.0)
        return Comparison(float(same), tuple(kl.tolist()))


def replay(
    engine: Engine, prompt: Sequence[int], tokens: Sequence[int], recall_every: int, dense: bool
) -> Replay:
    """See `Engine.replay`; the prompt is token ids here."""
    if not tokens:
        raise ValueError("replay: at least one token is needed")
    logits = []
    with engine.open([prompt], len(tokens), dense) as session:
        for number, token in enumerate(tokens):
            recall = recall_every > 0 and not dense and number % recall_every == 0
            logits.append(session.step([token], recall)[0].float().cpu())
            if recall:
                session.take_recall()
        return Replay(torch.stack(logits), session.meter.total(), tuple(session.recalls))


def compare_dense(engine: Engine, prompt: Sequence[int], tokens: Sequence[int]) -> Comparison:
    """Feeds a prompt and what followed it to the flow and to dense attention, one token a step.

    The first of `tokens` follows from the prefill, which is dense either way: it is fed, not judged.
    """
    if len(tokens) < 2:
        return Comparison(None, ())
    sparse, dense = (replay(engine, prompt, tokens[:-1], 0, way) for way in (False, True))
    return sparse.against(dense)


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
