"""An algorithm file decodes: the same tokens as the same method written by hand."""

import pytest
from support import MeanTopK, words

from vortex import GeMM, Max, Maximum, Mean, Min, Sum, attn, topK, vFlow
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_flow
from vortex.engines.transformers.engine import Engine
from vortex.vtensor.reference import ReferenceRunner

PROMPTS = [words(40), words(9, seed=2), words(16, seed=3)]


class BlockTopK(vFlow):
    block_size = 4
    budget = 3
    sink_blocks = 0
    recent_blocks = 0

    def forward_cache(c):
        c["centroids"] = Mean(c["k"], dim=1)

    def forward_indexer(q, c):
        s = GeMM(c["centroids"], q.T)
        i = topK(Mean(s, dim=2), dim=1)
        return attn(q, c["k"], c["v"], i)


class Counting(vFlow):
    """A state: how often each block was selected so far makes it less attractive."""

    block_size = 4
    budget = 3

    def forward_cache(c):
        c["max"] = Max(c["k"])
        c["min"] = Min(c["k"])

    def forward_indexer(q, c):
        s = Max(Sum(Maximum(q * c["max"], q * c["min"])))
        i = topK(s - c["seen"])
        c["seen"] = c["seen"] + i
        return i


def engine(model, flow) -> Engine:
    heads = model.heads
    traced = trace_flow(flow, shape=Shape(heads.query, heads.kv, heads.dim, model.layers))
    assert traced.program is not None, traced.findings
    return Engine(model, ReferenceRunner(traced.program), page_size=8, pool_tokens=256)


def tokens(engine, prompts):
    return [result.tokens for result in engine.generate(prompts, 12).generations]


def test_a_flow_gives_what_the_same_method_by_hand_gives(model):
    by_hand = Engine(model, MeanTopK(), page_size=8, pool_tokens=256)
    assert tokens(engine(model, BlockTopK), PROMPTS) == tokens(by_hand, PROMPTS)


@pytest.mark.parametrize("flow", [BlockTopK, Counting])
def test_a_batch_gives_what_each_request_gives_alone_also_with_state(model, flow):
    e = engine(model, flow)
    together = tokens(e, PROMPTS)
    assert together == [tokens(engine(model, flow), [prompt])[0] for prompt in PROMPTS]
    assert tokens(e, PROMPTS) == together  # again, over cached pages and used state slots
