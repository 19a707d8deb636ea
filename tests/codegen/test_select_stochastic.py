"""Stochastic top-k: the bound on recall, what the draws depend on, and where nothing is drawn.

Without a GPU the kernels run in Triton's interpreter on small grids; `-m gpu` runs the same tests compiled.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.codegen.flows import flow
from tests.codegen.selections import DEVICES, HEADS, KINDS, QUIET, SMALL_LONG, rows_of, select, size
from vortex.codegen.build import build
from vortex.codegen.select import SelectConfig, Selector
from vortex.codegen.select_launch import Launch, default_launch
from vortex.codegen.show import show_plan
from vortex.dsl.ops.ranking import top_k_ids

pytestmark = QUIET


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def stochastic(scores, take, *, seed=7, layer=0, lengths=None, launch=SMALL_LONG):
    requests = scores.shape[0] // HEADS
    n = scores.shape[1]
    lengths = lengths or [16 * n + 3] * requests
    ids, counts, _ = select(scores, [n] * requests, [take] * requests, recall=0.9, seed=seed, layer=layer,
                            lengths=lengths, launch=launch)  # fmt: skip
    return ids, counts


@pytest.mark.parametrize("kind", KINDS)
def test_stochastic_recall_is_a_bound_and_ids_are_distinct(device, kind):
    n, k = size(device, 600, 8192), 120
    scores = rows_of(kind, 2 * HEADS, n).to(device)
    ids, counts = stochastic(scores, k)
    assert counts.tolist() == [k + 1] * 2 * HEADS
    chosen = ids[:, :k].long()
    assert bool((chosen[:, 1:] > chosen[:, :-1]).all()) and int(chosen.min()) >= 0 and int(chosen.max()) < n
    values = scores.cpu().gather(1, chosen)
    kth = scores.cpu().topk(k).values[:, -1:]
    assert bool(((values >= kth).sum(1) >= math.ceil(0.9 * k)).all())


def test_stochastic_draws_depend_on_seed_layer_head_and_length_alone(device):
    n, k = size(device, 1024, 8192), 200
    row = rows_of("constant", 1, n)  # every block ties: all are drawn
    scores = row.expand(3 * HEADS, n).contiguous().to(device)
    first, _ = stochastic(scores, k, lengths=[5000, 5000, 5001])
    again, _ = stochastic(scores, k, lengths=[5000, 5000, 5001])
    assert first.equal(again)
    assert first[0].equal(first[HEADS]), "the same head in another row of the batch"
    alone, _ = stochastic(scores[:HEADS].contiguous(), k, lengths=[5000])
    assert alone.equal(first[:HEADS])
    seed, layer = (stochastic(scores, k, **{name: 8})[0][0] for name in ("seed", "layer"))
    for name, other in (("seed", seed), ("layer", layer), ("head", first[1]), ("length", first[2 * HEADS])):
        assert not first[0].equal(other), name


def test_stochastic_sample_meets_every_lane_of_the_bucket_alike(device):
    requests = size(device, 40, 400)
    # 90 winners, a wall of 60 equal scores of which 10 are drawn, and losers.
    row = torch.cat([torch.arange(90) + 2.0, torch.ones(60), torch.zeros(106)])
    row = row[torch.randperm(256, generator=torch.Generator().manual_seed(4))]
    scores = row.expand(requests * HEADS, 256).contiguous().to(device)
    ids, _ = stochastic(scores, 100, lengths=list(range(1, requests + 1)))
    share = torch.bincount(ids[:, :100].flatten().long(), minlength=256) / len(ids)
    sampled = share[(share > 0) & (share < 1)]
    assert len(sampled) == 60 and float(sampled.sum()) == pytest.approx(10, abs=1e-3)
    assert float((sampled - sampled.mean()).abs().max()) < size(device, 0.25, 0.1)


@pytest.mark.parametrize("launch", [None, SMALL_LONG])
def test_recall_on_recorded_rows_of_a_model(device, launch):
    scores = torch.from_numpy(np.load(Path(__file__).with_name("scores.npy")))
    k = 125
    ids, _ = stochastic(scores.to(device), k, launch=launch)
    values, best = scores.gather(1, ids[:, :k].long()), scores.topk(k).values
    assert bool(((values >= best[:, -1:]).sum(1) >= math.ceil(0.9 * k)).all())


@pytest.mark.parametrize("launch", [Launch(2, 8, 64, keep=64), replace(SMALL_LONG, draws=False)])
def test_rows_in_which_drawing_saves_nothing_are_selected_exactly(device, launch):
    scores = rows_of("few values", HEADS, 700).to(device)
    ids, _ = stochastic(scores, 60, launch=launch)
    for row in range(HEADS):
        assert ids[row, :60].tolist() == top_k_ids(scores[row].cpu(), 60, 0, 0).tolist()


def test_a_selector_says_whether_it_samples():
    config = SelectConfig("top_k", 2000, 60, HEADS, recall=0.9)
    assert not Selector(config, 1, "cpu").samples
    assert Selector(config, 1, "cpu", SMALL_LONG).samples
    assert [default_launch(131072, k, 8).draws for k in (32, 512, 2048)] == [False, False, True]


@pytest.mark.parametrize("mode, said", [("", False), (', mode="stochastic", recall=0.9', True)])
def test_the_plan_says_where_a_stochastic_selection_samples(tmp_path, mode, said):
    indexer = f'return topK(Max(GeMM(c["m"], q.T), dim="head"){mode})'
    program = flow(tmp_path, indexer, cache='c["m"] = Mean(c["k"], dim="token")')
    assert ("recall 0.9: sampled where that saves time" in show_plan(build(program))) == said
