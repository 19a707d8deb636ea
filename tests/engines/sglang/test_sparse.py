"""A small budget: as the embedded engine decodes, whatever SGLang does with its pages and rows."""

import pytest

from tests.engines.sglang.models import prompt
from tests.engines.sglang.serving import compare_with_embedded, embedded, sparse

ERROR = 1e-4
FLOW = "Remembering"


@pytest.fixture(scope="module")
def server(model):
    # A pool that a few requests fill: pages and rows go from one to the next all the time. More are taken in than
    # can come to their end, so that some are retracted.
    given = {"max_total_tokens": 1536, "max_running_requests": 4, "schedule_conservativeness": 0.1}
    with sparse(model, FLOW, **given) as server:
        yield server


@pytest.fixture(scope="module")
def engine(model):
    return embedded(model, FLOW)


def alike(engine, server, prompts, tokens=24):
    found = server.generate(prompts, tokens)
    for each, generated in zip(prompts, found, strict=True):
        compare_with_embedded(engine, each, generated, ERROR)
    return found


def test_mixed_lengths_and_prompts_in_chunks(engine, server):
    alike(engine, server, [prompt(length, 1) for length in (1, 7, 8, 9, 40, 64, 65, 200, 300)])


def test_the_flow_selects_here(engine, server, tmp_path):
    before = server.probe(tmp_path)["reads"]
    alike(engine, server, [prompt(120, 2)], 10)
    reads = server.probe(tmp_path)["reads"]
    # 0.5.16 begins another step before it sees that the request has ended.
    steps = reads["steps"] - before["steps"]
    assert steps in (9, 10)
    assert (reads["sparse"] - before["sparse"], reads["dense"] - before["dense"]) == (2 * steps, 0)
    # 2 layers, 2 KV heads, K and V of 32 numbers in 4 bytes: 3 blocks of 8 and the current one.
    tokens = sum(3 * 8 + (length - 1) % 8 + 1 for length in range(121, 121 + steps))
    assert reads["kv_bytes"] - before["kv_bytes"] == 2 * 2 * 2 * 32 * 4 * tokens


def test_a_prefix_from_the_cache_has_its_entries(engine, server):
    server.flush()
    start = prompt(160, 3)
    alike(engine, server, [[*start, *prompt(9, 4)]])
    (again,) = alike(engine, server, [[*start, *prompt(30, 5)]])
    assert again.cached == 160


def test_what_was_generated_is_a_prefix_too(engine, server, tmp_path):
    server.flush()
    start = prompt(50, 6)
    (first,) = alike(engine, server, [start], 40)
    # K and V of these tokens come from sparse steps: no engine that reads them as a prompt has the same.
    (again,) = server.generate([[*start, *first.tokens, *prompt(5, 7)]])
    assert again.cached == (50 + 39) // 16 * 16
    assert server.probe(tmp_path)["wrong"] == []


def test_the_same_prompt_twice_at_once(engine, server):
    server.flush()
    alike(engine, server, [prompt(100, 8)] * 3)


def test_pages_and_rows_that_others_had(engine, server, tmp_path):
    server.flush()
    for seed in range(10, 15):
        server.generate([prompt(length, seed) for length in (330, 170, 250, 90)], 12)
        alike(engine, server, [prompt(length, seed + 100) for length in (70, 130)], 12)
    assert server.probe(tmp_path)["wrong"] == []


def test_after_an_aborted_request(engine, server, tmp_path):
    server.flush()
    came, _ = server.run(server.stream(prompt(200, 20), 500, "given-up", stop_after=5))
    assert 5 <= len(came) < 500
    alike(engine, server, [prompt(length, 21) for length in (200, 190, 77)])
    found = server.probe(tmp_path)
    assert (
        found["wrong"] == [] and found["tokens"] == found["all_tokens"] and found["rows"] == found["all_rows"]
    )


def test_a_request_that_was_retracted(engine, server, tmp_path):
    server.flush()
    # Four requests that need 2,400 tokens together in a pool of 1,536: some lose their pages, and start anew.
    prompts = [prompt(100, seed) for seed in range(30, 34)]
    assert sum(server.run(server.one_by_one(prompts, 500))) > 0
    alike(engine, server, [prompt(length, 35) for length in (150, 300)])
    assert server.probe(tmp_path)["wrong"] == []
