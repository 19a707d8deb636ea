"""What is drawn from, by hand."""

import pytest
import torch

from vortex.engines.transformers.sampling import Sampler, Sampling, probabilities

ROW = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).log()


def test_temperature_alone_is_a_softmax():
    expected = torch.tensor([[0.25, 0.04, 0.04, 0.01]])
    torch.testing.assert_close(probabilities(ROW, Sampling(temperature=0.5)), expected / expected.sum())


def test_top_k_keeps_the_largest():
    assert probabilities(ROW, Sampling(temperature=1.0, top_k=1)).tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert probabilities(ROW, Sampling(temperature=1.0, top_k=9)).gt(0).all()


def test_top_p_keeps_the_fewest_that_reach_it():
    weights = probabilities(ROW, Sampling(temperature=1.0, top_p=0.6))
    assert weights.gt(0).sum() == 2
    assert weights[0, 0] == pytest.approx(0.5 / 0.7)


def test_a_top_p_below_the_largest_keeps_that_one():
    assert probabilities(ROW, Sampling(temperature=1.0, top_p=0.01)).tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_draws_follow_the_probabilities():
    sampler = Sampler(Sampling(temperature=1.0, seed=3), 1)
    counts = torch.zeros(4)
    for _ in range(2000):
        counts[sampler.pick(ROW, [0])[0]] += 1
    torch.testing.assert_close(counts / 2000, ROW[0].exp(), rtol=0, atol=0.05)


def test_greedy_draws_nothing():
    assert Sampler(Sampling(), 2).pick(torch.tensor([[0.0, 2.0], [3.0, 1.0]]), [0, 1]) == [1, 0]
