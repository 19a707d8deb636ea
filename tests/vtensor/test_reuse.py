"""reuse_steps and reuse_layers: which selection a step and a layer attend."""

from dataclasses import replace

import pytest

from tests.vtensor.support import compare_with_alone, decode, edge_lengths, flow
from vortex.vtensor.batch import BatchError

BODY = """
    def forward_cache(self, c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(self, q, c):
        return topK(Mean(GeMM(c["mean"], q.T), dim="head"))
"""


def run(folder, length, steps, layers=1, **hyper):
    """Per step and layer, the attended blocks of KV head 0 of one request."""
    program = flow(folder, BODY, 2, layers=layers, **{"block_size": 4, "budget": 6, **hyper})
    engine = decode(program, [length], steps=steps, layers=layers)
    return [_step(engine, step, layers) for step in range(steps)]


def _step(engine, step, layers):
    engine.step(step)
    return [engine.attended(0, layer)[0] for layer in range(layers)]


def joined(selected, n, sinks=1, recent=1):
    return sorted({*selected, n, *range(min(sinks, n)), *range(max(n - recent, 0), n)})


def test_steps_attend_the_last_selection_with_reserved_and_current(tmp_path):
    start, steps = 42, 14
    fresh = run(tmp_path, start, steps)
    reused = run(tmp_path, start, steps, reuse_steps=8)
    last = None
    for step in range(steps):
        tokens = start + step
        if last is None or (tokens - 1) % 8 == 0:
            last = fresh[step][0]
        assert reused[step][0] == joined(last, (tokens - 1) // 4), step
    assert reused != fresh


def test_a_block_that_was_current_when_selected_stays_and_a_younger_one_does_not(tmp_path):
    steps = run(tmp_path, 41, 15, reuse_steps=32, recent_blocks=0)
    assert 10 in steps[0][0], "current at the first step"
    assert 10 in steps[12][0]
    assert 11 in steps[4][0], "current"
    assert 11 not in steps[8][0], "neither reserved nor selected"


def test_layers_attend_what_their_leader_selected_in_this_step(tmp_path):
    fresh = run(tmp_path, 50, 6, layers=4)
    reused = run(tmp_path, 50, 6, layers=4, reuse_layers=3)
    for step in range(6):
        assert reused[step] == [fresh[step][0]] * 3 + [fresh[step][3]]


def test_both_together(tmp_path):
    fresh = run(tmp_path, 50, 6, layers=2)
    reused = run(tmp_path, 50, 6, layers=2, reuse_layers=2, reuse_steps=4)
    selected = [fresh[0][0], fresh[3][0]]
    for step in range(6):
        assert reused[step] == [joined(selected[step >= 3], (49 + step) // 4)] * 2


def test_dense_layers_stay_dense_and_a_dense_leader_still_selects_for_its_group(tmp_path):
    fresh = run(tmp_path, 50, 3, layers=3)
    reused = run(tmp_path, 50, 3, layers=3, reuse_layers=3, dense_layers="0, 2")
    for step in range(3):
        everything = list(range((49 + step) // 4 + 1))
        assert reused[step] == [everything, fresh[step][0], everything]


def test_a_row_that_leaves_density_selects_at_once(tmp_path):
    fresh = run(tmp_path, 46, 8)
    reused = run(tmp_path, 46, 8, reuse_steps=16, dense_below=50)
    for step in range(8):
        n = (45 + step) // 4
        expected = joined(fresh[4][0], n) if step >= 4 else list(range(n + 1))
        if step >= 4 and 46 + step - 1 == 48:
            expected = fresh[step][0]
        assert reused[step][0] == expected, step


def test_a_row_that_was_dense_for_a_step_selects_anew(tmp_path):
    once = "6 + 100 * max(0, min(tokens - 47, 49 - tokens))"
    fresh = run(tmp_path, 46, 6)
    reused = run(tmp_path, 46, 6, reuse_steps=64, budget=once)
    assert reused[2][0] == list(range(12))
    assert [reused[step][0] for step in (3, 4)] == [fresh[3][0], joined(fresh[3][0], 12)]


def test_a_reset_slot_forgets_its_selection(tmp_path):
    program = flow(tmp_path, BODY, 2, block_size=4, budget=6, reuse_steps=64)
    engine = decode(program, [50], steps=3)
    engine.step(0)
    engine.step(1)
    kept = engine.attended(0)
    engine.runner.reset_slot(engine.storage, 0)
    engine.step(1)
    fresh = decode(flow(tmp_path, BODY, 2, block_size=4, budget=6), [50], steps=3)
    fresh.step(0)
    fresh.step(1)
    assert engine.attended(0) == fresh.attended(0) != kept


def test_batched_equals_alone(tmp_path):
    program = flow(tmp_path, BODY, 3, block_size=4, budget=4, reuse_steps=3)
    compare_with_alone(program, 8, edge_lengths(8), steps=7)


def test_a_layer_without_its_leader_is_an_error(tmp_path):
    program = flow(tmp_path, BODY, 1, block_size=4, budget=3, reuse_layers=2)
    engine = decode(program, [50], layers=2)
    q = engine.requests[0].q[:1]
    with pytest.raises(BatchError, match="layer 1 reuses what layer 0 selects"):
        engine.runner.select(engine.storage, 1, q, engine.pool, engine.batch(0))


@pytest.mark.parametrize("hyper", [{"reuse_steps": 2}, {"reuse_layers": 2}])
def test_a_flow_with_state_refuses_reuse(hyper, tmp_path):
    body = """
    def forward_indexer(self, q, c):
        c["acc"] = c.get("acc", 0.0) + Max(GeMM(c["k"], Mean(q, dim="head")), dim="token")
        return topK(c["acc"])
"""
    program = flow(tmp_path, body)
    program = replace(program, policy=replace(program.policy, **hyper))
    with pytest.raises(BatchError, match=r"Flow keeps state \('acc'\), which would miss the steps"):
        decode(program, [50])
