"""The decode step on a CPU: the reference, and kernels in Triton's interpreter, give the same rows and counters."""

from dataclasses import replace

import pytest
import torch
from step_cases import Decoding, program

from vortex.attention.counters import Tally
from vortex.attention.provider import Features
from vortex.attention.step import DecodeStep, StepOptions, attended, fixed_counts
from vortex.vtensor.batch import Batch, BatchError, Heads

SMALL = {"block_size": 4, "budget": 4}


def totals(step):
    return [(each.sparse, each.dense) for each in step.counters()]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_attends_what_the_reference_selects_and_counts_it(compiled):
    decoding = Decoding(program(layers=1, **SMALL), 3, 48, compiled=compiled)
    decoding.write([41, 0, 7])
    decoding.decode()
    decoding.check()
    (reads,) = decoding.step.counters()
    found, _, _ = decoding.expected(0)
    assert (reads.sparse, reads.dense) == (1, 1)
    assert reads.kv_bytes == decoding.tokens(found) * 2 * 16 * 4
    decoding.step.reset_counters()
    assert totals(decoding.step) == [(0, 0)]


@pytest.mark.parametrize("compiled", [False, True])
def test_short_rows_and_dense_layers_are_dense_in_the_same_step(compiled):
    flow = program(layers=2, dense_layers="1", dense_below=20, **SMALL)
    decoding = Decoding(flow, 3, 40, compiled=compiled)
    decoding.write([33, 19, 20])
    decoding.decode()
    decoding.check()
    assert totals(decoding.step) == [(2, 1), (0, 3)]


def test_a_budget_that_covers_the_longest_context_leaves_the_dense_kernel_alone():
    decoding = Decoding(program(**SMALL), 2, 60, options=StepOptions(max_tokens=16))
    assert decoding.step.whole == [True, True] and decoding.step.selects == [False, False]
    decoding.write([16, 5])
    decoding.decode()
    decoding.check(dense=True)
    assert totals(decoding.step) == [(0, 2), (0, 2)]


def test_a_full_budget_equals_dense_through_the_sparse_path_when_the_shortcut_is_off():
    decoding = Decoding(program(layers=1, block_size=4, budget="blocks"), 2, 28, shortcut=False)
    decoding.write([25, 12])
    decoding.decode()
    decoding.check(dense=True)
    assert totals(decoding.step) == [(2, 0)]


@pytest.mark.parametrize("features", [Features(window=9), Features(soft_cap=2.0), Features(sinks=True)])
@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_model_asks_of_attention_reaches_sparse_and_dense_layers(features, compiled):
    flow = program(layers=2, dense_layers="1", **SMALL)
    decoding = Decoding(flow, 2, 40, compiled=compiled, options=StepOptions(features=features))
    assert decoding.step.whole == [False, True]
    decoding.write([33, 6])
    decoding.sinks = torch.linspace(-1, 3, decoding.heads.query) if features.sinks else None
    decoding.decode()
    decoding.check_features()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_block_that_rejected_tokens_finished_is_summarised_from_those_that_replace_them(compiled):
    decoding = Decoding(program(layers=1, **SMALL), 1, 48, compiled=compiled)
    decoding.write([41])
    decoding.decode()
    # Tokens 38 to 40 are rejected, the block of 36 to 39 gets others; an engine says so by clearing `valid`.
    block = int(decoding.batch.page_table[0, 9])
    decoding.batch.lengths.fill_(38)
    decoding.decode()
    # Keys along the queries of each KV head: whoever scores them selects the block.
    wanted = decoding.q[0, 0].view(decoding.heads.kv, -1, decoding.heads.dim).sum(1)
    decoding.pools[0].tensors["k"][block * 4 + 2 : block * 4 + 4] = 9 * wanted
    decoding.step.valid[block] = 0
    decoding.lengths = [45]
    decoding.batch.lengths.fill_(45)
    decoding.decode()
    decoding.check()


def test_the_dense_twin_selects_nothing():
    decoding = Decoding(program(**SMALL), 2, 60, options=StepOptions(dense=True))
    decoding.write([60, 31])
    decoding.decode()
    decoding.check(dense=True)
    assert totals(decoding.step) == [(0, 2), (0, 2)]


def test_layers_that_follow_count_what_their_leader_selected():
    decoding = Decoding(program(layers=2, reuse_layers=2, **SMALL), 1, 40)
    decoding.write([37])
    decoding.decode()
    decoding.check()
    first, second = decoding.step.counters()
    assert first == second and first.sparse == 1


@pytest.mark.parametrize("heads", [Heads(6, 3, 8), Heads(4, 1, 8)])
def test_the_kernel_adds_up_what_torch_adds_up(heads):
    lengths = torch.tensor([17, 0, 4, 1, 9], dtype=torch.int32)
    batch = Batch(
        lengths, torch.zeros(5, 5, dtype=torch.int32), torch.arange(5, dtype=torch.int32), 4, 4, heads
    )
    dense = torch.tensor([[0, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.int8)
    skipping = torch.tensor([1, 0, 1], dtype=torch.int8)
    made = [
        Tally(5, heads, 4, [False, False, True], [0, 0, 2], dense, skipping, torch.float16, kernel=kernel)
        for kernel in (False, True)
    ]
    for tally in made:
        tally.counts.copy_(torch.arange(15).view(3, 5, 1) % 4)
        tally.add(batch)
        tally.add(batch)
    assert made[0].read() == made[1].read()
    assert [(each.sparse, each.dense) for each in made[1].read()] == [(6, 2), (8, 0), (0, 8)]


def test_counts_are_fixed_for_a_constant_budget_alone():
    assert fixed_counts(program(**SMALL))
    assert not fixed_counts(program(block_size=4, budget="50% * blocks"))
    assert not fixed_counts(program(block_size=4, budget="8 + layer"))
    assert not fixed_counts(program(reuse_steps=2, **SMALL))
    assert not fixed_counts(program("top_theta", block_size=4))
    assert [attended(program(**SMALL), length) for length in (0, 1, 8, 17, 100)] == [0, 1, 2, 4, 4]


def test_what_does_not_fit_is_refused():
    flow = program(layers=1, **SMALL)
    decoding = Decoding(flow, 2, 16, compiled=False)
    with pytest.raises(BatchError, match="the step is for 2 requests"):
        batch = decoding.batch
        rows = {name: getattr(batch, name)[:1] for name in ("lengths", "page_table", "slots")}
        decoding.step.plan(replace(batch, **rows))
    with pytest.raises(ValueError, match="dense_kernel: one of reference, first or auto"):
        Decoding(flow, 2, 16, compiled=False, options=StepOptions(dense=True, dense_kernel="fast"))
    with pytest.raises(ValueError, match="keeps state, so its indexer runs in every step"):
        Decoding(
            program("h2o", layers=1, block_size=4), 2, 16, compiled=False, options=StepOptions(dense=True)
        )


@pytest.mark.parametrize("compiled", [False, True])
def test_steps_of_several_batch_sizes_share_scratch_entries_and_counters(compiled):
    """As an engine has one for each size of its graphs: the smaller one after the larger left its scores behind."""
    shared = torch.zeros(1, 3, dtype=torch.int64)
    flow = program(layers=1, **SMALL)
    decoding = Decoding(flow, 4, 40, compiled=compiled, options=StepOptions(totals=shared))
    decoding.write([37, 12, 30, 33])
    decoding.decode()
    decoding.check()
    large, batch = decoding.step, decoding.batch
    few = Batch(batch.lengths[:2], batch.page_table[:2], batch.slots[:2], batch.page_size, 4, batch.heads)
    small = DecodeStep(
        large.runner, large.storage, large.pools, few, torch.float32, StepOptions(totals=shared)
    )
    assert small.valid is large.valid
    if compiled:
        scores, held = (next(iter(step.space.buffers.values())) for step in (small, large))
        assert scores.data_ptr() == held.data_ptr() and len(scores) == len(held) // 2
    small.plan()
    again = small.run(0, decoding.q[0, :2])
    assert torch.equal(again, decoding.out[0, :2])
    assert shared[0, :2].tolist() == [4, 2], "a row of 12 tokens is dense"
