"""A selection that covers everything equals SGLang's own dense attention, with and without the shortcut."""

import pytest

from tests.engines.sglang.models import prompt
from tests.engines.sglang.serving import compare, dense, sparse, sparse_by_environment

LENGTHS = (1, 5, 15, 16, 17, 31, 33, 63, 65, 130, 163, 300)
PROMPTS = [prompt(length, 1) for length in LENGTHS]
SHARED = [[*PROMPTS[-1][:200], *prompt(20, seed)] for seed in (2, 3)]
ERROR = 1e-4
"""Of a log probability in float32, whose sums come in another order. Seen: 2e-6."""


@pytest.fixture(scope="module")
def expected(model):
    with dense(model) as server:
        return [server.generate(PROMPTS), server.generate(SHARED)]


def compared(server, expected, tmp_path):
    compare(server.generate(PROMPTS), expected[0], ERROR)
    shared = server.generate(SHARED)
    compare(shared, expected[1], ERROR)
    assert all(each.cached >= 192 for each in shared)
    found = server.probe(tmp_path)
    assert found["wrong"] == [] and found["valid"] > 0
    return found["reads"]


def test_every_block_selected_one_by_one_equals_torch_native(model, expected, tmp_path):
    with sparse(model, "Everything") as server:
        reads = compared(server, expected, tmp_path)
    # A request of one block is dense whatever is selected: two layers, lengths up to 8.
    short = 2 * sum(max(8 - length, 0) for length in LENGTHS)
    steps = 2 * 23 * (len(PROMPTS) + len(SHARED))
    assert (reads["dense"], reads["sparse"]) == (short, steps - short)


def test_a_budget_that_covers_everything_equals_torch_native(model, expected, tmp_path):
    with sparse_by_environment(model, "Remembering", "budget=256") as server:
        reads = compared(server, expected, tmp_path)
    assert (reads["dense"], reads["sparse"]) == (2 * 23 * (len(PROMPTS) + len(SHARED)), 0)
