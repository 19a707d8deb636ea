"""The generation loop over a session."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vortex.engines.transformers.counters import Counters
from vortex.engines.transformers.recall import Recall
from vortex.engines.transformers.sampling import Sampler, Sampling
from vortex.engines.transformers.text import TextStream

if TYPE_CHECKING:
    from vortex.engines.transformers.engine import Engine

OnToken = Callable[[int, int, str], None]


@dataclass
class Generation:
    """One request's result.

    prompt  token ids as they ran
    tokens  generated ids, the stop token included
    text    what they say, without stop token or stop string; "" without a tokenizer
    finish  "stop" (token or string) or "length"
    """

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = "length"


@dataclass(frozen=True)
class Output:
    """What `Engine.generate` returns.

    prefill_s, decode_s  seconds; the first token of each request belongs to the prefill. Text, callbacks
                         and the measuring of recall are in neither
    decoded              tokens that decode steps gave
    cached               prompt tokens whose K and V were in the pool already
    """

    generations: list[Generation]
    prefill_s: float
    decode_s: float
    decoded: int
    cached: int
    counters: Counters
    recalls: list[Recall]

    @property
    def tokens_per_s(self) -> float | None:
        """Decoded tokens a second over the batch; None if nothing was decoded."""
        return self.decoded / self.decode_s if self.decoded else None

    @property
    def recall(self) -> float | None:
        """Mean recall of attention mass over the sampled steps; None if none was sampled."""
        return sum(r.mean for r in self.recalls) / len(self.recalls) if self.recalls else None


def generate(
    engine: Engine,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    sampling: Sampling,
    stop_tokens: tuple[int, ...],
    stop_strings: Sequence[str],
    on_token: OnToken | None,
    recall_every: int,
    dense: bool,
) -> Output:
    """See `Engine.generate`; prompts are token ids here."""
    sampler = Sampler(sampling, len(prompts))
    results = [Generation(list(prompt)) for prompt in prompts]
    streams = [TextStream(engine.loaded.tokenizer, stop_strings) for _ in prompts]
    prefill_s = decode_s = 0.0
    decoded = 0

    started = time.perf_counter()
    with engine.open(prompts, max_new_tokens - 1, dense) as session:
        while True:
            live = [request.index for request in session.requests]
            tokens = sampler.pick(session.logits, live)
            took = time.perf_counter() - started
            if session.steps == 0:
                prefill_s = took
            else:
                decode_s += took
                decoded += len(tokens)
                if session.has_recall:
                    session.take_recall()
            ended = [row for row, (index, token) in enumerate(zip(live, tokens, strict=True))
                     if _accept(results[index], streams[index], index, token, max_new_tokens, stop_tokens,
                                on_token)]  # fmt: skip
            session.drop(ended)
            if not session.requests:
                break
            leaving = set(ended)
            tokens = [token for row, token in enumerate(tokens) if row not in leaving]
            started = time.perf_counter()
            session.step(tokens, recall=recall_every > 0 and not dense and session.steps % recall_every == 0)
    return Output(
        results, prefill_s, decode_s, decoded, session.cached, session.meter.total(), session.recalls
    )


def _accept(result: Generation, stream: TextStream, index: int, token: int, limit: int,
            stop_tokens: tuple[int, ...], on_token: OnToken | None) -> bool:  # fmt: skip
    """Adds a token to a request; True if that was its last."""
    result.tokens.append(token)
    stop = token in stop_tokens
    piece = "" if stop else stream.push(token)
    stop = stop or stream.stopped
    done = stop or len(result.tokens) >= limit
    if done:
        piece += stream.finish()
        # What was held back may hold a stop string in its end.
        result.finish = "stop" if stop or stream.stopped else "length"
        result.text = stream.text
    if on_token is not None:
        on_token(index, token, piece)
    return done
