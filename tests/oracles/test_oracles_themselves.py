"""What the papers prove about their scores holds for the oracles."""

from dataclasses import replace

import pytest
import torch

from tests.oracles import ORACLES, Case
from tests.oracles.convention import top


def case(length: int, *, group: int = 3, dim: int = 16, seed: int = 0, **changes) -> Case:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(size, dim, generator=generator, dtype=torch.float64) for size in (group, length, length)
    )
    return replace(Case(q, k, v, block=8, budget=6, sink=1, recent=1), **changes)


@pytest.mark.parametrize("method", ["quest", "arkvale"])
def test_a_bound_is_never_below_the_best_key_of_the_block(method):
    one = case(200)
    best = torch.einsum("ntd,hd->nth", one.key_blocks(), one.q).amax((1, 2))
    assert (ORACLES[method](one, {}).scores >= best).all()


@pytest.mark.parametrize("method", ["h2o", "tova", "scissorhands"])
def test_what_eviction_dropped_never_returns(method):
    state: dict = {}
    dropped: set[int] = set()
    whole = case(160, seed=1)
    for length in range(60, 160):
        q = torch.randn(3, 16, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
        now = replace(whole, q=q, k=whole.k[:length], v=whole.v[:length])
        chosen = ORACLES[method](now, state).blocks
        assert not chosen & dropped
        dropped |= set(range(now.n + 1)) - chosen
    assert dropped


def test_twilight_attends_the_fewest_blocks_that_weigh_p():
    one = case(300, budget=20, hyper={"p": 0.5})
    fewer = ORACLES["twilight"](one, {}).blocks
    more = ORACLES["twilight"](replace(one, hyper={"p": 0.9}), {}).blocks
    assert fewer < more and len(more) <= 20


@pytest.mark.parametrize(("length", "expected"), [(1, {0}), (8, {0}), (9, {0, 1}), (80, {0, 1, 2, 8, 9})])
def test_ties_fall_to_lower_blocks_and_reserved_ones_count(length, expected):
    one = case(length, budget=5)
    assert top(one, torch.zeros(one.n, dtype=torch.float64)) == expected


def test_minus_infinity_is_never_taken():
    one = case(80)
    assert top(one, torch.full((one.n,), -torch.inf)) == one.reserved() == {0, 8, 9}
