"""Generated programs: valid, the same for a seed, over the whole registry, finite when they run."""

import dataclasses
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.generate import Generated, generate
from vortex.dsl.registry import OPERATORS
from vortex.dsl.text import TextError, parse, print_program
from vortex.dsl.verify import verify
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.pool import KVPool
from vortex.vtensor.reference import ReferenceRunner

SEEDS = range(25)


@cache
def program(seed: int) -> Generated:
    return generate(seed)


def test_a_seed_gives_the_same_program_again():
    assert [generate(seed) for seed in range(5)] == [program(seed) for seed in range(5)]


def test_every_operator_is_generated():
    programs = [program(seed).program for seed in SEEDS]
    used = {node.op for each in programs for node in (*each.cache.nodes, *each.indexer.nodes)}
    # attn leaves no node: it names the result.
    assert {op.name for op in OPERATORS.values()} - {"attn"} == used


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_a_program_is_what_its_text_says(seed):
    found = generate(seed).program
    assert parse(print_program(found)) == found
    verify(found)


def test_text_that_is_no_program_is_refused_with_a_place():
    text = print_program(program(0).program)
    with pytest.raises(TextError, match="line 3"):
        parse(text.replace("policy", "polizei", 1))


def test_a_node_out_of_place_is_refused():
    text = print_program(program(0).program)
    with pytest.raises(TextError, match="stands at position"):
        parse(text.replace("%0 = ", "%7 = ", 1))


def test_odd_names_survive_the_text_form():
    found = program(0).program
    odd = dataclasses.replace(found, name='a "b"\n%0 = }', file="ключ/\\x.py")
    assert parse(print_program(odd)) == odd


@pytest.mark.parametrize("seed", SEEDS)
def test_a_generated_program_runs_and_stays_finite(seed):
    generated = program(seed)
    shape, size = generated.shape, generated.program.policy.block_size
    lengths = torch.tensor([1, size, size + 1, 5 * size + 1, 9 * size], dtype=torch.int32)
    heads = Heads(shape.query_heads, shape.kv_heads, shape.head_dim)
    table = torch.randperm(50, generator=torch.Generator().manual_seed(seed)).reshape(5, 10).to(torch.int32)
    batch = Batch(lengths, table, torch.arange(5, dtype=torch.int32), size, size, heads)
    random = torch.Generator().manual_seed(seed)
    pools = {name: torch.randn(50 * size, shape.kv_heads, shape.head_dim, generator=random) for name in "kv"}
    pool = KVPool(pools, size)
    runner = ReferenceRunner(generated.program, shortcut=False)
    storage = runner.allocate(
        layers=2, pool_blocks=50, slots=5, max_blocks=10, heads=heads, device=torch.device("cpu")
    )
    q = torch.randn(5, shape.query_heads, shape.head_dim, generator=random)
    for layer in range(2):
        runner.summarise(storage, layer, pool, torch.arange(50))
        for entry in storage.entries[layer].values():
            assert entry.data.isfinite().all() and entry.data.float().abs().max() < 3e4
    for _ in range(2):
        selection = runner.select(storage, 0, q, pool, batch)
        assert (selection.counts >= 1).all()
    for state in storage.states[0].values():
        assert state.data.isfinite().all()


@pytest.mark.slow
def test_three_hundred_programs_run_and_stay_finite():
    for seed in range(100, 400):
        test_a_generated_program_runs_and_stays_finite(seed)
