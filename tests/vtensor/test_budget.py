"""How many blocks are attended, which of them without being scored, and when a row is dense."""

import pytest
import torch

from tests.vtensor.support import decode, flow

# A block's score is its first key's first element.
SCORED = """
    def forward_cache(self, c):
        c["s"] = c["k"][:, 0, 0]

    def forward_indexer(self, q, c):
        return topK(c["s"]{k})
"""


def scored(tmp_path, lengths, k="", shortcut=True, layers=1, **hyper):
    program = flow(tmp_path, SCORED.replace("{k}", k), layers=2, block_size=4, **hyper)
    engine = decode(program, lengths, layers=layers, shortcut=shortcut)
    engine.step(0)
    return engine


def by_hand(engine, row, head, attended, sinks, recent):
    """Plain Python: reserved blocks and the current one, then the best of the others."""
    n = (engine.lengths[row] - 1) // 4
    score = engine.requests[row].k[::4, head, 0].tolist()
    chosen = {n, *range(min(sinks, n)), *range(max(n - recent, 0), n)}
    rest = sorted(set(range(n)) - chosen, key=lambda block: -score[block])
    return sorted(chosen | set(rest[: max(attended - len(chosen), 0)]))


@pytest.mark.parametrize(("sinks", "recent"), [(1, 1), (0, 0), (3, 4), (5, 0)])
@pytest.mark.parametrize("budget", [0, 1, 6, "50% * blocks", "max(3, tokens / 16)", 100])
def test_attended_is_the_larger_of_budget_and_reserved_within_blocks(budget, sinks, recent, tmp_path):
    lengths = [1, 4, 5, 8, 9, 19, 20, 21, 63]
    engine = scored(tmp_path, lengths, budget=budget, sink_blocks=sinks, recent_blocks=recent)
    for row, length in enumerate(lengths):
        blocks = -(-length // 4)
        value = {"50% * blocks": -(-blocks // 2), "max(3, tokens / 16)": max(3, -(-length // 16))}.get(
            budget, budget
        )
        reserved = min(blocks - 1, sinks + recent) + 1
        attended = min(blocks, max(value, reserved))
        assert engine.selections[0].counts[row].tolist() == [attended] * 2
        assert bool(engine.selections[0].dense[row]) == (value >= blocks)
        for head in range(2):
            assert engine.attended(row)[head] == by_hand(engine, row, head, attended, sinks, recent)


def test_sinks_and_recent_overlap_in_a_short_row(tmp_path):
    engine = scored(tmp_path, [12, 16], budget=0, sink_blocks=2, recent_blocks=2)
    assert engine.attended(0) == [[0, 1, 2]] * 2
    assert engine.attended(1) == [[0, 1, 2, 3]] * 2


def test_explicit_k_is_the_size_of_the_whole_set(tmp_path):
    engine = scored(tmp_path, [63], k=", k=5", budget=3)
    assert engine.selections[0].counts.tolist() == [[5, 5]]
    assert engine.attended(0)[1] == by_hand(engine, 0, 1, 5, 1, 1)


def test_a_row_that_the_budget_covers_is_dense_whatever_k_says(tmp_path):
    assert scored(tmp_path, [63], k=", k=5", budget=16).selections[0].counts.tolist() == [[16, 16]]
    off = scored(tmp_path, [63], k=", k=5", budget=16, shortcut=False)
    assert off.selections[0].counts.tolist() == [[5, 5]]
    assert off.selections[0].dense.tolist() == [False]


def test_without_the_shortcut_a_covering_budget_selects_everything(tmp_path):
    on = scored(tmp_path, [1, 30, 63], budget=16)
    off = scored(tmp_path, [1, 30, 63], budget=16, shortcut=False)
    assert torch.equal(on.selections[0].ids, off.selections[0].ids)
    assert (on.selections[0].dense.tolist(), off.selections[0].dense.tolist()) == ([True] * 3, [False] * 3)


def test_dense_below_counts_tokens(tmp_path):
    engine = scored(tmp_path, [39, 40], budget=3, dense_below=40)
    assert engine.selections[0].dense.tolist() == [True, False]
    assert engine.selections[0].counts.tolist() == [[10, 10], [3, 3]]


def test_dense_layers_stay_dense_without_the_shortcut(tmp_path):
    for shortcut in (True, False):
        engine = scored(tmp_path, [63], budget=3, dense_layers="-1", layers=2, shortcut=shortcut)
        assert [each.dense.tolist() for each in engine.selections] == [[False], [True]]
        assert engine.selections[1].counts.tolist() == [[16, 16]]


def test_minus_infinity_and_nan_are_never_selected(tmp_path):
    body = """
    def forward_indexer(self, q, c):
        i = Positions().index
        return topK(Where(i % 2 == 0, 1.0, Where(i > 5, Log(Neg(i + 0.0)), Log(i * 0.0))))
"""
    engine = decode(flow(tmp_path, body, block_size=4, budget=9, sink_blocks=0, recent_blocks=0), [40])
    engine.step(0)
    assert engine.attended(0)[0] == [0, 2, 4, 6, 8, 9]


SHARED = """
    def forward_cache(self, c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(self, q, c):
        s = GeMM(c["mean"], Mean(q, dim="head"))
        {more}
        return topK(s)
"""


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_shared_heads_select_by_the_combined_scores(how, tmp_path):
    program = flow(
        tmp_path,
        SHARED.replace("{more}", 'c["own"] = s + 0.0'),
        3,
        kv_heads=3,
        block_size=4,
        budget=5,
        share_heads=how,
    )
    engine = decode(program, [63, 22])
    engine.step(0)
    for row, length in enumerate([63, 22]):
        n = (length - 1) // 4
        request = engine.requests[row]
        means = request.k[: n * 4].reshape(n, 4, 3, 8).mean(1)
        queries = request.q[0].reshape(3, 3, 8).mean(1)
        own = torch.einsum("nhd,hd->hn", means, queries)
        scores = {"sum": own.sum(0), "mean": own.mean(0), "max": own.amax(0)}[how]
        chosen = scores[1 : n - 1].topk(5 - 3).indices + 1
        expected = sorted([0, n - 1, n, *chosen.tolist()])
        assert engine.attended(row) == [expected] * 3
        # What else uses the scores sees those of its own head.
        kept = engine.storage.states[0]["own"].data[row][:, :n]
        torch.testing.assert_close(kept, own, atol=1e-5, rtol=1e-5)


def test_shared_heads_combine_a_restricted_axis_as_well(tmp_path):
    body = SHARED.replace("{more}", "kept = topK(s, k=8)\n        s = Gather(s * s, kept)")
    engine = decode(flow(tmp_path, body, 1, block_size=4, budget=5, share_heads="sum"), [63])
    engine.step(0)
    own = torch.einsum(
        "nhd,hd->hn", engine.requests[0].k[:60].reshape(15, 4, 2, 8).mean(1), engine.requests[0].q[0]
    )
    kept = [0, 14, *((own.sum(0)[1:14].topk(5).indices + 1).tolist())]
    squares = own.square().sum(0)
    best = sorted(set(kept) - {0, 14}, key=lambda block: -squares[block])[:2]
    assert engine.attended(0) == [sorted([0, 14, 15, *best])] * 2
