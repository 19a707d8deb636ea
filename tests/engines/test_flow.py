"""An algorithm file decodes: the same tokens as the same method written by hand."""

from pathlib import Path

import pytest
import torch
from support import MeanTopK, words

from vortex import GeMM, Max, Maximum, Mean, Min, Sum, attn, topK, vFlow
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_flow
from vortex.dsl.target import folder
from vortex.engines.transformers import Engine, FlowError
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


def test_a_flow_is_named_by_file_name_class_or_program(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"block_size": 4, "budget": 3, "sink_blocks": 0, "recent_blocks": 0}
    program = engine(model, BlockTopK).runner.program
    expected = tokens(engine(model, BlockTopK), PROMPTS)
    shipped = Path(folder() / "block_topk.py")
    Path("mine.py").write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    for flow in ("block_topk", "block_topk:BlockTopK", shipped, "mine.py"):
        made = Engine(model, flow, settings=settings, page_size=8, pool_tokens=256)
        assert tokens(made, PROMPTS) == expected
    for flow in (BlockTopK, program):
        assert tokens(Engine(model, flow, page_size=8, pool_tokens=256), PROMPTS) == expected


def test_a_flow_with_errors_shows_its_findings(model, tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(
        "from vortex import *\nclass F(vFlow):\n    def forward_indexer(q, c):\n        return topk(q)\n"
    )
    with pytest.raises(FlowError, match=r"4:16: error VTX201: .*Did you mean topK\?") as caught:
        Engine(model, path)
    assert [each.code for each in caught.value.findings] == ["VTX201"]
    with pytest.raises(FlowError, match="Did you mean block_topk"):
        Engine(model, "blok_topk")
    with pytest.raises(FlowError, match="bugdet"):
        Engine(model, "quest", settings={"bugdet": 3})


def test_what_is_no_flow_and_settings_of_a_traced_one_are_refused(model):
    with pytest.raises(TypeError, match="a flow is an algorithm file"):
        Engine(model, 3)
    with pytest.raises(TypeError, match="a flow is an algorithm file"):
        Engine(model, dict)
    with pytest.raises(ValueError, match="Program is traced already"):
        Engine(model, engine(model, BlockTopK).runner.program, settings={"budget": 3})


def test_entries_that_selecting_reads_are_counted(model):
    made = Engine(model, "quest", settings={"block_size": 4, "budget": 3}, page_size=8, pool_tokens=256)
    counters = made.replay(PROMPTS[0], [1, 2, 3]).counters
    finished = sum((40 + step) // 4 for step in range(3))
    # Two entries of 16 elements, fp32, of 2 KV heads in 2 layers.
    assert counters.entry_bytes == finished * 2 * 16 * 4 * 2 * 2
    reused = Engine(
        model, "quest", settings={"block_size": 4, "reuse_layers": 2}, page_size=8, pool_tokens=256
    )
    assert reused.replay(PROMPTS[0], [1]).counters.entry_bytes is None


def test_a_replay_is_fed_the_tokens_whatever_would_have_been_chosen(model):
    made = engine(model, BlockTopK)
    given = words(6, seed=8)
    found, dense = made.replay(PROMPTS[0], given), made.replay(PROMPTS[0], given, dense=True)
    with made.open([PROMPTS[0]], 6) as session:
        by_hand = torch.stack([session.step([token])[0] for token in given])
    assert torch.equal(found.logits, by_hand.float())
    assert [each.step for each in found.recalls] == list(range(6)) and 0 < found.recall < 1
    assert (dense.recalls, dense.recall, dense.counters.kv_share) == ((), None, 1.0)
    assert [each.step for each in made.replay(PROMPTS[0], given, recall_every=4).recalls] == [0, 4]
    assert torch.equal(made.replay(torch.tensor(PROMPTS[0]), torch.tensor(given)).logits, found.logits)


def test_replays_of_the_same_tokens_compare_and_others_do_not(model):
    made = engine(model, BlockTopK)
    given = words(6, seed=8)
    found, dense = made.replay(PROMPTS[0], given), made.replay(PROMPTS[0], given, dense=True)
    itself = found.against(found)
    assert (itself.agreement, itself.mean_kl) == (1.0, 0.0)
    differs = found.against(dense)
    assert len(differs.kl) == 6 and differs.mean_kl > 0
    p, q = (each.logits[2].double().softmax(-1) for each in (dense, found))
    assert differs.kl[2] == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-5)
    with pytest.raises(ValueError, match="replays of 6 and 5 tokens"):
        found.against(made.replay(PROMPTS[0], given[:5]))
    with pytest.raises(ValueError, match="at least one token"):
        made.replay(PROMPTS[0], [])
