"""The selection reference against what torch.topk and arithmetic by hand say."""

import math

import pytest
import torch

from vortex.dsl.ops.ranking import threshold_ids, top_k_ids, top_p_ids


def test_random_row_is_torch_topk_in_ascending_order():
    scores = torch.randn(300, generator=torch.Generator().manual_seed(0))
    assert top_k_ids(scores, 40).equal(scores.topk(40).indices.sort().values)


def test_ties_go_to_the_lower_id_and_zeros_tie():
    assert top_k_ids(torch.tensor([0.0, -0.0, 1.0, -0.0, 0.0]), 3).tolist() == [0, 1, 2]
    assert top_k_ids(torch.tensor([-0.0, 0.0, 1.0]), 2).tolist() == [0, 2]


def test_nan_ranks_as_minus_infinity_and_neither_is_selected():
    scores = torch.tensor([math.nan, -math.inf, 2.0, -math.nan, math.inf, -3.0])
    assert top_k_ids(scores, 5).tolist() == [2, 4, 5]
    assert top_k_ids(torch.full((4,), -math.inf), 3).tolist() == []
    assert top_k_ids(scores, 6).tolist() == [0, 1, 2, 3, 4, 5], "a dense row lists everything"


def test_reserved_blocks_are_in_the_set_and_not_candidates():
    scores = torch.tensor([9.0, 1.0, 5.0, 4.0, 8.0, -1.0])
    assert top_k_ids(scores, 3, sinks=1, recent=1).tolist() == [0, 4, 5]
    assert top_k_ids(scores, 0, sinks=1, recent=1).tolist() == [0, 5]
    assert top_k_ids(scores, 1, sinks=4, recent=4).tolist() == [0, 1, 2, 3, 4, 5]


def test_empty_row():
    empty = torch.empty(0)
    assert (
        top_k_ids(empty, 4).tolist()
        == top_p_ids(empty, 0.5, 4).tolist()
        == threshold_ids(empty, 0, 4).tolist()
        == []
    )


def test_top_p_takes_the_fewest_that_reach_the_share():
    weights = torch.tensor([1.0, 4.0, 2.0, 1.0, 0.0])
    assert top_p_ids(weights, 0.5, 5).tolist() == [1]
    assert top_p_ids(weights, 0.51, 5).tolist() == [1, 2]
    assert top_p_ids(weights, 0.875, 5).tolist() == [0, 1, 2]
    assert top_p_ids(weights, 1.0, 5).tolist() == [0, 1, 2, 3]
    assert top_p_ids(weights, 1.0, 2).tolist() == [1, 2]
    assert top_p_ids(weights, 0.75, 5, sinks=1, recent=1).tolist() == [0, 1, 2, 4]
    assert top_p_ids(torch.zeros(3), 0.9, 3).tolist() == []


def test_threshold_keeps_the_best_of_too_many():
    scores = torch.tensor([3.0, 1.0, -math.inf, 2.0, math.nan])
    assert threshold_ids(scores, 2.0, 5).tolist() == [0, 3]
    assert threshold_ids(scores, -math.inf, 5).tolist() == [0, 1, 3]
    assert threshold_ids(scores, 1.0, 1).tolist() == [0]
    assert threshold_ids(scores, 5.0, 5, recent=1).tolist() == [4]


def test_a_share_outside_0_to_1_is_refused():
    with pytest.raises(ValueError, match="share between 0 and 1"):
        top_p_ids(torch.ones(3), 1.5, 3)
