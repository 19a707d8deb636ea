"""What a set of blocks holds when it is used as a tensor, restricts an axis, or is joined with another."""

import pytest

from tests.vtensor.support import decode, flow

FORTY = 40 * 4 + 1
"""Tokens of a request with 40 finished blocks of 4; the current one is number 40."""


def attended(folder, body, length=FORTY, **hyper):
    text = "    def forward_cache(c):\n        c['mean'] = Mean(c['k'])\n\n    def forward_indexer(q, c):\n"
    text += "".join(f"        {line}\n" for line in ["n = Positions().index * 1.0", *body.split("; ")])
    engine = decode(flow(folder, text, **{"block_size": 4, "budget": 6, **hyper}), [length])
    engine.step(0)
    return engine.attended(0)


@pytest.mark.parametrize("count", ["Sum(i, dim='block')", "Sum(Gather(n * 0 + 1, i), dim='block')"])
def test_the_indicator_of_a_selection_and_what_it_gathers_contain_the_reserved_blocks(count, tmp_path):
    body = f"i = topK(n, k=5); return n < {count}"
    assert attended(tmp_path, body)[0] == [0, 1, 2, 3, 39, 40]  # 4 of the set, then recent and current


def test_a_pattern_contains_what_it_says_and_the_reserved_blocks_are_attended_besides(tmp_path):
    body = "i = n == 20; return n < Sum(i, dim='block') + 2"
    assert attended(tmp_path, body)[0] == [0, 1, 2, 39, 40]


RESTRICTED = {
    "topP(Gather(n * 0 + 1, i), p=0.6)": [10, 11],
    "Threshold(Gather(n, i), t=-1)": [10, 11, 12],
    "Threshold(Gather(n, i), t=Gather(n * 0 + 11, i))": [11, 12],
    "topK(Gather(n, i), k=3)": [11, 12],
    "topK(Gather(n, i))": [10, 11, 12],
}


@pytest.mark.parametrize("selection", RESTRICTED)
def test_a_selection_over_a_restricted_axis_chooses_among_its_blocks_alone(selection, tmp_path):
    body = f"i = (n >= 10) & (n < 13); return {selection}"
    found = attended(tmp_path, body, sink_blocks=0, recent_blocks=0)
    assert found[0] == [*RESTRICTED[selection], 40]


def test_an_intersection_smaller_than_the_budget_is_not_filled_up(tmp_path):
    assert attended(tmp_path, "return topK(n) & topK(-n)")[0] == [0, 39, 40]
    assert attended(tmp_path, "return topK(n, k=30) & topK(-n, k=30)")[0] == [0, *range(12, 28), 39, 40]


SHARED = {
    "topK(Max(GeMM(c['mean'], q.T)))": True,
    "topP(Mean(Softmax(GeMM(c['mean'], q.T)), dim='head'), p=0.5)": True,
    "Threshold(Max(GeMM(c['mean'], q.T)), t=0.3)": True,
    "Max(GeMM(c['mean'], q.T)) > 0.3": False,
}


@pytest.mark.parametrize("selection", SHARED)
def test_heads_share_every_selection_by_scores_and_no_boolean(selection, tmp_path):
    apart = attended(tmp_path, f"return {selection}")
    shared = attended(tmp_path, f"return {selection}", share_heads="mean")
    assert apart[0] != apart[1]
    assert (shared[0] == shared[1]) is SHARED[selection]
    assert (shared == apart) is not SHARED[selection]
