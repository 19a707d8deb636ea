"""The reference against attention by the book; its edges are those of every provider."""

from dataclasses import replace

import pytest
import torch
from attention_cases import by_the_book, check, make, with_selection

from vortex.attention.measure import made_up
from vortex.attention.provider import Features
from vortex.attention.reference import ReferenceProvider
from vortex.vtensor.batch import BatchError

REFERENCE = ReferenceProvider()
EDGES = [1, 15, 16, 17, 63, 64, 65]


def test_lengths_around_a_block_boundary_and_a_padded_slot():
    case = make([*EDGES, 0])
    check(case, case.run(REFERENCE))


@pytest.mark.parametrize("group", [1, 3, 5, 6, 7, 16])
def test_groups(group):
    case = make([40, 9], query=2 * group, kv=2, dim=80)
    check(case, case.run(REFERENCE))


@pytest.mark.parametrize("block", [1, 8, 32, 128])
def test_block_sizes(block):
    case = make([130, 257, 5], block=block, budget=2)
    check(case, case.run(REFERENCE))


@pytest.mark.parametrize("layout", ["heads", "halves"])
def test_strides_of_the_pool_are_honoured(layout):
    case = make([50, 20], layout=layout)
    check(case, case.run(REFERENCE))


def test_a_page_of_several_blocks():
    case = make([100, 33, 0], block=8, page=32, budget=4)
    check(case, case.run(REFERENCE))


def test_queries_with_a_longer_row_stride():
    case = make([50, 20])
    wide = torch.zeros(2, 9, 64)
    wide[:, :6] = case.q
    strided = replace(case, q=wide[:, :6])
    assert torch.equal(strided.run(REFERENCE)[0], case.run(REFERENCE)[0])


@pytest.mark.parametrize(
    "features",
    [Features(window=20), Features(soft_cap=2.0), Features(sinks=True), Features(window=1, sinks=True)],
)
def test_features_of_models(features):
    case = make([70, 33, 0], features=features, budget=9)
    if features.sinks:  # a padded slot: the denominator is the sink alone
        assert torch.allclose(case.run(REFERENCE)[1][2], case.sinks)
    check(case, case.run(REFERENCE))


def test_first_ids_are_all_minus_one():
    case = make([100, 100], budget=4)
    case.selection.ids[:, :, :3] = -1
    check(case, case.run(REFERENCE))


def test_no_valid_key_gives_zeros_and_minus_infinity():
    case = make([100, 100])
    case.selection.ids[0] = -1
    case.selection.counts[1] = 0
    out, lse = case.run(REFERENCE)
    assert not out.any() and torch.isneginf(lse).all()


def test_counts_that_differ_by_head():
    case = make([100, 100], budget=6)
    case.selection.counts[0, 1] = 2
    case.selection.counts[1, 0] = 5
    check(case, case.run(REFERENCE))


def test_dense_rows_that_list_no_blocks_walk_the_page_table():
    case = make([100, 40, 0], dense=[True, False, True], lists_dense=False)
    check(case, case.run(REFERENCE))


def test_a_budget_that_covers_everything_equals_dense():
    case = make([100, 40], budget=7)
    dense = with_selection(case, dense=torch.tensor([True, True]), lists_dense=False)
    assert torch.equal(case.run(REFERENCE)[0], dense.run(REFERENCE)[0])


def test_lengths_decide_where_the_allocator_owns_one_more_page():
    case = make([64])
    assert case.batch.page_table.shape[1] > 4
    check(case, case.run(REFERENCE))


def test_softmax_is_shift_invariant_below_minus_50000():
    case = make([60])
    case.q[:] = -6e4 / (64 * case.scale)
    case.pool.tensors["k"].copy_(torch.ones_like(case.pool.tensors["k"]))
    out, lse = case.run(REFERENCE)
    uniform = replace(case, q=torch.zeros_like(case.q))
    assert torch.allclose(out, uniform.run(REFERENCE)[0], atol=1e-6)
    assert torch.allclose(lse, torch.tensor(-6e4), rtol=1e-3)


def test_logits_spread_by_100000():
    case = make([60], budget=4)
    case.q.mul_(1e4)
    check(case, case.run(REFERENCE))


def test_scales_of_an_8_bit_pool_change_the_result():
    case = make([60], kv_dtype=torch.float8_e4m3fn, scales=(0.5, 2.0))
    check(case, case.run(REFERENCE))
    unscaled = replace(case, pool=replace(case.pool, scales=None))
    assert not torch.allclose(case.run(REFERENCE)[0], unscaled.run(REFERENCE)[0])


def test_exact_arithmetic_is_that_of_fp64():
    case = make([100, 17])
    out, _ = case.run(ReferenceProvider(exact=True))
    assert torch.equal(out, by_the_book(case, torch.float64)[0].float())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda case: replace(case, q=case.q[:, :5]), "q: "),
        (lambda case: replace(case, sinks=torch.zeros(6)), "sinks: given exactly where"),
        (
            lambda case: with_selection(case, counts=case.selection.counts.long()),
            "selection.counts: torch.int32",
        ),
        (lambda case: with_selection(case, lists_dense=False), "selection.lists_dense"),
        (lambda case: replace(case, pool=replace(case.pool, page_size=32)), "page_size: "),
    ],
)
def test_a_call_that_was_not_planned_is_refused(change, words):
    case = make([40, 9])
    planned = REFERENCE.plan(case.shape, case.features)
    other = change(case)
    with pytest.raises(BatchError, match=words):
        planned.run(other.q, other.pool, other.selection, other.batch, 1.0, sinks=other.sinks)


def test_made_up_inputs_are_selections_of_distinct_ascending_blocks():
    shape = replace(make([40]).shape, requests=3, width=6, q_dtype=torch.bfloat16, kv_dtype=torch.float8_e5m2)
    batch, pools, selections, q = made_up(shape, length=150, attended=5, layers=2)
    batch.check_values()
    for pool, selection in zip(pools, selections, strict=True):
        ids = selection.ids
        assert (ids[..., 5:] == -1).all() and (ids[..., 4] == 9).all() and (ids[..., :5].diff() > 0).all()
        out, _ = REFERENCE.plan(shape, Features()).run(q, pool, selection, batch, 0.1)
        assert out.isfinite().all()
    assert not torch.equal(selections[0].ids, selections[1].ids)
