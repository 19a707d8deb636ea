"""Every algorithm, run by the reference executor on ragged paged batches, attends what its oracle attends."""

import pytest

from tests.algorithms.decode import STATEFUL, Decode
from tests.oracles import ORACLES, Case, Choice
from tests.oracles.convention import top


def agree(case: Case, choice: Choice, attended: list[int]) -> None:
    """The same blocks; where scores decide, others lie within fp32's error of the last one taken."""
    assert attended == sorted(set(attended)), "ids are distinct and ascend"
    if case.n + 1 <= case.budget:
        assert attended == list(range(case.n + 1)), "a covered row attends everything"
        return
    assert len(attended) == len(choice.blocks)
    different = set(attended) ^ choice.blocks
    if different:
        assert choice.scores is not None, f"{sorted(attended)} instead of {sorted(choice.blocks)}"
        scores = choice.scores[choice.scores.isfinite()]
        last = min(choice.scores[b] for b in choice.blocks - case.reserved())
        error = 1e-5 * float(scores.abs().max())
        assert all(abs(choice.scores[b] - last) <= error for b in different)


@pytest.mark.parametrize(("block", "group"), [(4, 1), (8, 3), (16, 4)])
@pytest.mark.parametrize("stem", sorted(set(ORACLES) - set(STATEFUL)))
def test_attends_what_its_oracle_attends(stem, block, group):
    starts = [1, block, 3 * block + 1, 11 * block - 1, 20 * block + 5]
    for case, choice, attended in Decode(stem, block, group, starts, steps=3).run():
        agree(case, choice, attended)


@pytest.mark.parametrize(("block", "group"), [(4, 1), (8, 3), (4, 4)])
@pytest.mark.parametrize("stem", STATEFUL)
def test_state_follows_its_oracle_from_step_to_step(stem, block, group):
    """Requests that start covered and grow past the budget, and one that starts far beyond it."""
    decode = Decode(stem, block, group, [1, 5 * block - 2, 14 * block], steps=10 * block)
    for case, choice, attended in decode.run():
        agree(case, choice, attended)


@pytest.mark.parametrize("stem", ["quest", "streaming_llm", "top_theta", "h2o"])
def test_reserved_blocks_beyond_the_budget_are_attended(stem):
    for case, choice, attended in Decode(stem, 4, 3, [60], steps=2, recent=9).run():
        agree(case, choice, attended)
        assert case.reserved() <= set(attended)


def test_tokens_are_selected_with_blocks_of_one():
    for case, choice, attended in Decode("lightning_indexer", 1, 3, [1, 2, 40], steps=4, page_blocks=4).run():
        agree(case, choice, attended)


def test_heads_that_share_select_by_the_sum_of_their_scores():
    decode = Decode("lightning_indexer", 4, 3, [50, 81], steps=2, changes={"share_heads": "sum"})
    seen = list(decode.run())
    for (case, first, attended), (_, second, others) in zip(seen[::2], seen[1::2], strict=True):
        total = first.scores + second.scores
        assert attended == others
        agree(case, Choice(top(case, total), total), attended)
