"""What a selection promises, and when two selections agree."""

from dataclasses import replace

import pytest
import torch

from tests.vtensor.support import decode, flow
from vortex.vtensor.agree import agree, disagreements
from vortex.vtensor.batch import BatchError
from vortex.vtensor.reference import ReferenceRunner
from vortex.vtensor.selection import Selection, check_selection, listed

BODY = """
    def forward_cache(self, c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(self, q, c):
        return topK(Mean(GeMM(c["mean"], q.T), dim="head"))
"""


@pytest.fixture
def engine(tmp_path):
    made = decode(flow(tmp_path, BODY, 2, kv_heads=1, block_size=4, budget=5), [41, 30])
    made.step(0)
    return made


def test_what_is_listed_is_checked(engine):
    check_selection(engine.selections[0], engine.batch(0))


def with_ids(selection, *row):
    ids = selection.ids.clone()
    ids[0, 0] = torch.tensor(row, dtype=torch.int32)
    return replace(selection, ids=ids)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0, 3, 2, 9, 10), "not ascending and distinct"),
        ((0, 3, 3, 9, 10), "not ascending and distinct"),
        ((0, 1, 2, 3, 9), "the current block 10"),
        ((0, 1, 2, 10, 11), "the current block 10"),
        ((-1, 1, 2, 3, 10), "ids from 0"),
    ],
)
def test_ids_that_are_refused(engine, row, message):
    with pytest.raises(BatchError, match=message):
        check_selection(with_ids(engine.selections[0], *row), engine.batch(0))


def test_counts_fill_and_dtypes_that_are_refused(engine):
    selection, batch = engine.selections[0], engine.batch(0)
    short = selection.counts - torch.tensor([[1], [0]], dtype=torch.int32)
    with pytest.raises(BatchError, match="-1 is expected after the first 4 ids"):
        check_selection(replace(selection, counts=short), batch)
    with pytest.raises(BatchError, match="0 attended of 11 blocks"):
        check_selection(replace(selection, counts=torch.zeros_like(short)), batch)
    with pytest.raises(BatchError, match="the table is 5 wide"):
        check_selection(replace(selection, counts=torch.full_like(short, 6)), batch)
    with pytest.raises(BatchError, match=r"selection.ids: torch.int32"):
        check_selection(replace(selection, ids=selection.ids.long()), batch)
    with pytest.raises(BatchError, match="a dense row of 11 blocks counts 5"):
        check_selection(replace(selection, dense=torch.tensor([True, False])), batch)


def test_listed_fills_with_minus_one():
    attended = torch.tensor([[[True, False, True, True]], [[True, False, False, False]], [[False] * 4]])
    selection = listed(attended, torch.zeros(3, dtype=torch.bool))
    assert selection.ids.tolist() == [[[0, 2, 3]], [[0, -1, -1]], [[-1, -1, -1]]]
    assert selection.counts.tolist() == [[3], [1], [0]]
    empty = listed(torch.zeros((0, 2, 0), dtype=torch.bool), torch.zeros(0, dtype=torch.bool))
    assert empty.ids.shape == (0, 2, 0)


def selections(engine, *changes):
    """The reference's selection with blocks of row 0 exchanged: (out, in) pairs."""
    reference = engine.selections[0]
    attended = set(engine.attended(0)[0])
    for out, into in changes:
        attended = attended - {out} | {into}
    return with_ids(reference, *sorted(attended)), reference


def test_a_near_tie_agrees_and_a_worse_block_does_not(engine):
    policy = engine.runner.program.policy
    exact = [torch.arange(10.0, dtype=torch.float64)[None], torch.arange(7.0, dtype=torch.float64)[None]]
    exact[0][0, 6] = 7.0 - 1e-6
    rounded = [each.float() + 1e-6 * (each > 100) for each in exact]
    rounded[0][0, 2] += 1e-6
    reference = with_ids(engine.selections[0], 0, 7, 8, 9, 10)
    near, worse = with_ids(reference, 0, 6, 8, 9, 10), with_ids(reference, 0, 5, 8, 9, 10)
    assert agree(reference, reference, rounded, exact, policy)
    assert agree(near, reference, rounded, exact, policy)
    found = disagreements(worse, reference, rounded, exact, policy)
    assert len(found) == 1 and found[0].startswith("request 0, KV head 0: block 5 has the score 5.0")


def test_counts_and_reserved_blocks_must_match(engine):
    policy = engine.runner.program.policy
    exact = engine.runner.scores(engine.storage, 0, engine.requests_q(0), engine.pool, engine.batch(0))
    exact = [each.double() for each in exact]
    rounded = [each.float() for each in exact]
    reference = engine.selections[0]
    fewer = Selection(reference.ids, reference.counts - 1, reference.dense)
    assert (
        "4 blocks are attended, the reference attends 5"
        in disagreements(fewer, reference, rounded, exact, policy)[0]
    )
    free = min(set(range(1, 9)) - set(engine.attended(0)[0]))
    no_sink, _ = selections(engine, (0, free))
    assert "block 0 is no candidate" in disagreements(no_sink, reference, rounded, exact, policy)[0]


def test_fp64_is_the_ground_truth_of_fp32(engine):
    exact_runner = ReferenceRunner(engine.runner.program, dtype="fp64")
    args = (engine.storage, 0, engine.requests_q(0), engine.pool, engine.batch(0))
    fp32, fp64 = engine.runner.scores(*args), exact_runner.scores(*args)
    assert [each.dtype for each in (fp32[0], fp64[0])] == [torch.float32, torch.float64]
    assert fp32[0].shape == (1, 10)
    torch.testing.assert_close(fp32[0].double(), fp64[0], atol=1e-6, rtol=1e-6)
    assert agree(engine.selections[0], exact_runner.select(*args), fp32, fp64, engine.runner.program.policy)


def test_scores_of_a_pattern_are_an_error(tmp_path):
    made = decode(flow(tmp_path, "    def forward_indexer(self, q, c):\n        return Last(3)\n"), [300])
    made.step(0)
    with pytest.raises(ValueError, match="the result is Last, which ranks no scores"):
        made.runner.scores(made.storage, 0, made.requests_q(0), made.pool, made.batch(0))


def test_the_storage_bounds_lengths_and_q_has_the_batch_s_shape(engine):
    batch = engine.batch(0)
    longer = replace(batch, lengths=torch.tensor([45, 30], dtype=torch.int32))
    with pytest.raises(
        BatchError, match="request 0 of 45 tokens has 12 blocks, the storage was allocated for 11"
    ):
        engine.runner.select(engine.storage, 0, engine.requests_q(0), engine.pool, longer)
    with pytest.raises(BatchError, match="q: "):
        engine.runner.select(engine.storage, 0, engine.requests_q(0)[:1], engine.pool, batch)
    with pytest.raises(BatchError, match="block_size: the flow was traced for 4"):
        engine.runner.select(
            engine.storage, 0, engine.requests_q(0), engine.pool, replace(batch, page_size=8, block_size=8)
        )
