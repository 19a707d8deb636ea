"""The Triton provider, interpreted without a GPU: the edges of the kernels. test_gpu.py has the rest."""

from dataclasses import replace

import pytest
import torch
from attention_cases import by_the_book, check, make, with_selection

from vortex.attention.provider import Features, Unsupported
from vortex.attention.triton_split import Schedule, TritonProvider, default_schedule, schedules

SMALL = Schedule(splits=3, tile=16)
SCHEDULES = [
    Schedule(splits=1, tile=16),
    SMALL,
    Schedule(splits=2, tile=32, swap=True),
    Schedule(splits=2, tile=32, ahead=True),
]
# The interpreter is numpy, which says so where log2(0) = -inf is meant.
pytestmark = pytest.mark.filterwarnings("ignore:divide by zero encountered in log2")


def provider(schedule: Schedule = SMALL) -> TritonProvider:
    return TritonProvider(schedule)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_schedules_agree_with_the_book(schedule):
    case = make([65, 16, 0], query=3, kv=1, budget=4)
    check(case, case.run(provider(schedule)))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 47, 48, 49])
def test_lengths_around_a_block_boundary(length):
    case = make([length], query=3, kv=1, dim=16, budget=4)
    check(case, case.run(provider()))


@pytest.mark.parametrize("group", [1, 3, 5, 6, 7, 16])
def test_groups(group):
    case = make([40], query=group, kv=1, dim=16)
    check(case, case.run(provider()))


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 192, 256])
def test_head_dims(dim):
    case = make([40], query=2, kv=1, dim=dim, dtype=torch.float16)
    check(case, case.run(provider()))


@pytest.mark.parametrize(("block", "page"), [(1, 1), (8, 32), (16, 64), (32, 32), (64, 64), (128, 128)])
def test_block_and_page_sizes(block, page):
    case = make([131], query=2, kv=1, dim=16, block=block, page=page, budget=5)
    check(case, case.run(provider(Schedule(splits=2, tile=32))))


@pytest.mark.parametrize("layout", ["heads", "halves"])
def test_strides_of_the_pool_are_honoured(layout):
    case = make([50], query=4, kv=2, dim=16, layout=layout)
    check(case, case.run(provider()))


def test_strides_of_the_query_and_of_the_result_are_honoured():
    case = make([50, 20], query=4, kv=2, dim=16)
    q, out, lse = torch.zeros(2, 7, 16), torch.full((2, 9, 32), torch.nan), torch.full((5, 2), torch.nan)
    q[:, :4] = case.q
    planned = provider().plan(case.shape, case.features)
    views = (out[:, :4, :16], lse[:4].T)
    result = planned.run(q[:, :4], case.pool, case.selection, case.batch, case.scale, *views)
    check(case, result)
    assert out[:, 4:].isnan().all() and out[..., 16:].isnan().all() and lse[4].isnan().all()


@pytest.mark.parametrize(
    "features",
    [Features(window=20), Features(soft_cap=2.0), Features(sinks=True), Features(1, 3.0, True)],
    ids=str,
)
@pytest.mark.parametrize("lists_dense", [True, False])
def test_features_of_models(features, lists_dense):
    case = make([70, 33, 0], query=2, kv=1, dim=16, features=features, dense=[True, False, False],
                lists_dense=lists_dense)  # fmt: skip
    check(case, case.run(provider()))


@pytest.mark.parametrize("schedule", [SCHEDULES[0], SMALL, SCHEDULES[2]], ids=str)
def test_first_ids_are_all_minus_one_and_no_valid_key_at_all(schedule):
    case = make([100, 100, 100], query=2, kv=1, dim=16, budget=4)
    case.selection.ids[0, :, :3] = -1
    case.selection.ids[1] = -1
    case.selection.counts[2] = 0
    check(case, case.run(provider(schedule)))


def test_counts_that_differ_by_head():
    case = make([100], query=4, kv=2, dim=16, budget=5)
    case.selection.counts[0, 1] = 2
    check(case, case.run(provider()))


def test_dense_rows_walk_the_page_table_in_the_same_launch():
    case = make([100, 40, 0], query=2, kv=1, dim=16, dense=[True, False, True], lists_dense=False)
    check(case, case.run(provider()))
    equal = with_selection(case, dense=torch.tensor([True, True, True]))
    covered = make([100, 40, 0], query=2, kv=1, dim=16, budget=7)
    check(covered, equal.run(provider()))


def test_one_plan_serves_shorter_and_longer_rows_in_turn():
    """Nothing of the step before is left in the buffers."""
    long, short = (make(lengths, query=2, kv=1, dim=16, seed=3) for lengths in ([70, 70], [70, 5]))
    short = replace(short, batch=replace(short.batch, page_table=short.batch.page_table))
    planned = provider(SMALL).plan(long.shape, long.features)
    for case in (long, short, long):
        check(case, planned.run(case.q, case.pool, case.selection, case.batch, case.scale))


def test_logits_spread_by_100000_and_below_minus_50000():
    case = make([60], query=2, kv=1, dim=16, budget=4)
    case.q.mul_(1e4)
    check(case, case.run(provider()))
    case.q.fill_(-6e4 / (16 * case.scale))
    case.pool.tensors["k"].fill_(1.0)
    exact, _ = by_the_book(case, torch.float64)
    assert torch.allclose(case.run(provider())[0].double(), exact, atol=1e-5)


def test_scales_of_the_pool_change_the_result():
    case = make([60], query=2, kv=1, dim=16, scales=(0.5, 2.0))
    check(case, case.run(provider()))


def test_no_requests():
    case = make([])
    out, lse = case.run(provider())
    assert out.shape == (0, 6, 64) and lse.shape == (0, 6)


def test_refusals_name_layer_and_remedy():
    case = make([40], kv_dtype=torch.float16)
    with pytest.raises(
        Unsupported, match=r"layer 3: attention provider 'triton' cannot do a pool of torch.float16"
    ):
        provider().plan(case.shape, case.features, layer=3)


def test_few_rows_that_walk_all_their_pages_take_programs_of_four_warps():
    shape = make([40], query=32, kv=8, dim=128, dtype=torch.bfloat16).shape
    walk = replace(shape, width=1, lists_dense=False, max_blocks=2048, block_size=16)
    assert default_schedule(walk, processors=132).warps == 4
    assert default_schedule(replace(walk, requests=64), 132).warps == 1
    assert default_schedule(replace(walk, width=126), 132).warps == 1
    assert default_schedule(replace(walk, lists_dense=True), 132).warps == 1
    assert {each.warps for each in schedules(walk, 132)} == {1, 4}


def test_the_default_schedule_fills_one_wave():
    shape = replace(make([40], query=32, kv=8, dim=128, dtype=torch.bfloat16).shape, requests=16, width=125)
    schedule = default_schedule(shape, processors=132)
    assert 132 * 4 <= 128 * schedule.splits <= 132 * 8
    assert default_schedule(replace(shape, requests=64), 132).splits <= schedule.splits
    assert default_schedule(replace(shape, width=1), 132).splits == 1
