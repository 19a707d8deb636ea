"""What a rank holds, what a flow keeps there, and how SGLang's budget and the counters tell of it."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vortex.dsl.ir import Shape
from vortex.engines.sglang import memory
from vortex.engines.sglang.counters import Counters, Reads
from vortex.engines.sglang.errors import StartError
from vortex.engines.sglang.rank import Rank, make_runner
from vortex.engines.sglang.settings import Settings
from vortex.vtensor.batch import Heads

ALGORITHMS = Path(__file__).resolve().parents[2] / "algorithms"
MODEL = Shape(query_heads=8, kv_heads=4, head_dim=16, layers=3)
FLOW = """
from vortex import *

class Weighed(vFlow):
    w = Parameter("w", "layer kv dim", init="normal", seed=3)

    def forward_cache(c):
        c["mean"] = Mean(c["k"], dim=1)

    def forward_indexer(self, q, c):
        return topK(Sum(c["mean"] * self.w))
"""


def of(name, **values):
    return Settings(ALGORITHMS / f"{name}.py", values=values)


def written(tmp_path, text):
    path = tmp_path / "flow.py"
    path.write_text(text)
    return Settings(path)


@pytest.mark.parametrize(
    ("size", "rank", "heads", "first"),
    [
        (1, 0, Heads(8, 4, 16), 0),
        (2, 1, Heads(4, 2, 16), 2),
        (4, 3, Heads(2, 1, 16), 3),
        (8, 5, Heads(1, 1, 16), 2),
        (8, 7, Heads(1, 1, 16), 3),
    ],
)
def test_heads_are_split_or_replicated(size, rank, heads, first):
    made = Rank(MODEL, size, rank)
    assert (made.heads, made.first) == (heads, first)
    assert made.replicated == (size > MODEL.kv_heads)
    assert made.shape == Shape(heads.query, heads.kv, 16, 3)


def test_a_parameter_is_cut_by_the_number_of_the_head_in_the_model(tmp_path):
    settings = written(tmp_path, FLOW)
    whole = make_runner(settings, Rank(MODEL), torch.float32, on_gpu=False).weights["w"]
    assert whole.shape == (3, 4, 16)
    parts = [
        make_runner(settings, Rank(MODEL, 2, rank), torch.float32, on_gpu=False).weights["w"]
        for rank in range(2)
    ]
    assert torch.equal(torch.cat(parts, 1), whole)


def test_a_replicated_head_has_its_parameter_on_every_rank(tmp_path):
    settings = written(tmp_path, FLOW)
    whole = make_runner(settings, Rank(MODEL), torch.float32, on_gpu=False).weights["w"]
    for rank in (4, 5):
        part = make_runner(settings, Rank(MODEL, 8, rank), torch.float32, on_gpu=False).weights["w"]
        assert torch.equal(part, whole[:, 2:3])


def test_a_parameter_by_query_head_on_ranks_that_split_a_group(tmp_path):
    text = FLOW.replace('"layer kv dim"', '"head dim"').replace("* self.w", "* Sum(self.w, dim='head')")
    settings = written(tmp_path, text)
    assert make_runner(settings, Rank(MODEL, 4, 1), torch.float32, on_gpu=False).weights["w"].shape == (2, 16)
    with pytest.raises(StartError, match="'w' has an axis of query heads, which 8 ranks split"):
        make_runner(settings, Rank(MODEL, 8, 1), torch.float32, on_gpu=False)


def test_scores_shared_by_heads_that_lie_on_other_ranks():
    settings = of("block_topk", share_heads="mean")
    assert make_runner(settings, Rank(MODEL), torch.float32, on_gpu=False)
    with pytest.raises(StartError, match=r"share_heads, and its KV heads are split over 2 ranks"):
        make_runner(settings, Rank(MODEL, 2, 0), torch.float32, on_gpu=False)


def test_a_pool_that_kernels_cannot_read():
    with pytest.raises(StartError, match=r"a pool of torch.float8_e5m2; kernels are made for bf16"):
        make_runner(of("block_topk"), Rank(MODEL), torch.float8_e5m2, on_gpu=True)


@pytest.mark.parametrize("name", ["block_topk", "quest", "h2o", "tova"])
@pytest.mark.parametrize("on_gpu", [False, True], ids=["reference", "compiled"])
def test_the_footprint_is_what_is_allocated(name, on_gpu):
    rank = Rank(MODEL)
    runner = make_runner(of(name), rank, torch.float16, on_gpu)
    kept = memory.footprint(runner, 3, rank.heads, max_blocks=5)
    made = runner.allocate(layers=3, pool_blocks=7, slots=2, max_blocks=5, heads=rank.heads,
                           device=torch.device("cpu"))  # fmt: skip
    assert made.bytes() == 7 * kept.block + 2 * kept.slot
    assert (kept.slot > 0) == bool(runner.program.states)
    assert kept.per_token(16) * 16 >= kept.block


def configurator(monkeypatch, name, decode="vortex", asked=None, draft=False, role="null", extra=None):
    """As SGLang sizes memory, without SGLang."""
    rank = Rank(MODEL)
    monkeypatch.setattr(memory.compat, "backends", lambda server_args: ("vortex", decode))
    monkeypatch.setattr(memory.compat, "resolved", lambda server_args: server_args)
    monkeypatch.setattr(memory, "rank_of", lambda config: rank)
    monkeypatch.setattr(memory, "settings", lambda config: of(name))
    arguments = SimpleNamespace(
        max_running_requests=asked, disaggregation_mode=role, disaggregation_decode_extra_slots=extra
    )
    return SimpleNamespace(
        server_args=arguments, is_draft_worker=draft, device="cpu",
        kv_cache_dtype=torch.float32, model_config=SimpleNamespace(hf_config=None, context_len=100),
    )  # fmt: skip


def test_a_token_costs_its_part_of_the_entries(monkeypatch):
    sized = configurator(monkeypatch, "block_topk")
    # A mean of 16 numbers in fp32 for each of 4 heads and 3 layers, and whether it is valid.
    assert memory.add_entry_bytes(1000, None, sized, 3) == 1000 + -(-(4 * 3 * 16 * 4 + 1) // 16)


@pytest.mark.parametrize("other", [{"decode": "flashinfer"}, {"draft": True}])
def test_other_backends_and_draft_models_are_left_alone(monkeypatch, other):
    sized = configurator(monkeypatch, "h2o", **other)
    assert memory.add_entry_bytes(1000, None, sized, 3) is None
    assert memory.reserve_state(1000, sized, 80.0) is None


def test_state_is_set_aside_before_the_pool_is_sized(monkeypatch):
    sized = configurator(monkeypatch, "h2o", asked=10)
    runner, kept = memory._footprint(sized)
    assert kept.slot > 0 and runner.program.states
    assert memory.reserve_state(10**9, sized, 80.0) == 10**9 - 11 * kept.slot


def test_state_that_does_not_fit_is_refused_with_the_figure(monkeypatch):
    sized = configurator(monkeypatch, "h2o")
    _, kept = memory._footprint(sized)
    available = 4000 * kept.slot
    with pytest.raises(StartError) as caught:
        memory.reserve_state(available, sized, 80.0)
    gib = 4097 * kept.slot / 2**30
    assert f"{gib:.2f} GiB for 4097 requests" in str(caught.value)
    assert "--max-running-requests 1999" in str(caught.value)


def test_a_decode_server_sets_state_aside_for_prompts_on_their_way_too(monkeypatch):
    sized = configurator(monkeypatch, "h2o", asked=10, role="decode", extra=20)
    _, kept = memory._footprint(sized)
    assert memory.reserve_state(10**9, sized, 80.0) == 10**9 - 31 * kept.slot
    with pytest.raises(StartError, match="--max-running-requests 4 or fewer"):
        memory.reserve_state(30 * kept.slot, sized, 80.0)


def test_a_flow_without_state_takes_nothing_from_the_pool(monkeypatch):
    assert memory.reserve_state(1000, configurator(monkeypatch, "quest"), 80.0) is None


def test_counters_tell_bytes_and_steps(caplog):
    counters = Counters(2, 64, torch.device("cpu"), every=2, rank=0, metrics=False)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            counters.step()
            counters.totals += torch.tensor([[3, 1, 100], [0, 4, 200]])
    reads = counters.read()
    assert isinstance(reads, Reads) and reads.steps == 3
    assert reads.shown()["layers"][1] == {"sparse": 0, "dense": 12, "kv_bytes": 3 * 200 * 64}
    assert (reads.total.sparse, reads.total.dense, reads.total.kv_bytes) == (9, 15, 3 * 300 * 64)
    assert "2 decode steps, rows attended sparse 6, dense 10" in caplog.text, (
        "those of the third step come later"
    )
