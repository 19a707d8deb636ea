"""The same checks inside CUDA graphs, with the overlap scheduler and the prefix cache, in bf16.

python -m pytest tests/engines/sglang/test_gpu.py -m gpu
"""

import asyncio

import pytest

from tests.engines.sglang.models import prompt
from tests.engines.sglang.serving import BF16_ERROR, as_embedded, compare_logprobs, dense, embedded, sparse
from tests.engines.sglang.test_roles import ROLE, decode_role
from tests.engines.sglang.test_soak import nothing_wrong, share_of_best, soak, soaked

pytestmark = pytest.mark.gpu

LENGTHS = (1, 5, 16, 17, 64, 65, 163, 300)
PROMPTS = [prompt(length, 1) for length in LENGTHS]
SHARED = [[*PROMPTS[-1][:200], *prompt(20, seed)] for seed in (2, 3)]


@pytest.fixture(scope="module")
def expected(model):
    with dense(model, cuda_graph_bs_decode=[1, 4, 8]) as server:
        return [server.generate(PROMPTS), server.generate(SHARED)]


@pytest.mark.parametrize(("flow", "values"), [("Everything", {}), ("Remembering", {"budget": 256})])
def test_a_selection_of_everything_equals_flashinfer_in_graphs(model, expected, flow, values, tmp_path):
    with sparse(model, flow, values, cuda_graph_bs_decode=[1, 4, 8]) as server:
        compare_logprobs(server.generate(PROMPTS), expected[0], BF16_ERROR)
        shared = server.generate(SHARED)
        compare_logprobs(shared, expected[1], BF16_ERROR)
        assert all(each.cached >= 192 for each in shared)
        found = server.probe(tmp_path)
    assert found["wrong"] == [] and found["valid"] > 0
    path = "sparse" if flow == "Everything" else "dense"
    assert found["reads"][path] > 0


@pytest.fixture(scope="module")
def server(model):
    given = {"max_total_tokens": 2048, "schedule_conservativeness": 0.1, "cuda_graph_bs_decode": [1, 4, 8]}
    with sparse(model, "Remembering", **given) as server:
        yield server


@pytest.fixture(scope="module")
def engine(model):
    return embedded(model, "Remembering")


def test_a_small_budget_decodes_as_the_embedded_engine(engine, server, tmp_path):
    as_embedded(engine, PROMPTS, server.generate(PROMPTS))
    assert server.probe(tmp_path)["wrong"] == []


def test_the_sparse_path_runs_inside_the_graph(server, tmp_path):
    before = server.probe(tmp_path)["reads"]
    server.generate([prompt(200, 7)], 33)
    reads = server.probe(tmp_path)["reads"]
    # A step that the overlap scheduler began before it saw the end counts too.
    assert 2 * 32 <= reads["sparse"] - before["sparse"] <= 2 * 34
    assert reads["dense"] == before["dense"]


def test_two_thousand_requests_leave_nothing_wrong_and_nothing_behind(engine, server, tmp_path):
    # In bf16 the best two tokens are now and then as good; a wrong state would change most of them.
    soaked(server, engine, tmp_path, 2000, same=0.8)


def test_requests_that_were_retracted(engine, server, tmp_path):
    server.flush()
    # Eight requests that need 4,000 tokens together in a pool of 2,048: some lose their pages, and start anew.
    prompts = [prompt(100, seed) for seed in range(30, 38)]
    assert sum(server.run(server.one_by_one(prompts, 400))) > 0
    found = server.probe(tmp_path)
    nothing_wrong(found)
    assert found["valid"] > 20
    as_embedded(engine, PROMPTS, server.generate(PROMPTS))


def test_pages_that_come_back_from_the_host_have_their_entries(model, engine, tmp_path):
    given = {"enable_hierarchical_cache": True, "hicache_ratio": 8.0, "max_total_tokens": 1024}
    with sparse(model, "Remembering", cuda_graph_bs_decode=[1, 4], max_running_requests=4, **given) as server:
        asked = [*prompt(400, 40), *prompt(9, 41)]
        server.generate([asked])
        for seed in range(42, 47):  # these take all of the pool, one after the other
            server.generate([prompt(700, seed)])
        (warm,) = server.generate([asked])
        assert warm.host >= 384 and warm.cached >= warm.host
        as_embedded(engine, [asked], [warm])
        found = server.run(asyncio.wait_for(soak(server, 100, 50), 240))
        assert share_of_best(engine, found[-4:]) >= 0.8
        assert server.probe(tmp_path)["wrong"] == []


def test_a_decode_server_summarises_what_was_transferred(model, tmp_path):
    with sparse(model, "Remembering", cuda_graph_bs_decode=[1, 4, 8], **ROLE) as server:
        decode_role(server, tmp_path)


def test_k_and_v_in_fp8(model, expected, tmp_path):
    """FlashInfer compiles its kernels for it, which takes minutes the first time."""
    with sparse(model, "Everything", kv_cache_dtype="fp8_e4m3", cuda_graph_bs_decode=[1, 4, 8]) as server:
        errors = []
        for ours, theirs in zip(server.generate(PROMPTS), expected[0], strict=True):
            for at, token in enumerate(theirs.tokens):
                if ours.tokens[at] != token:
                    break
                errors.append(abs(ours.logprobs[at] - theirs.logprobs[at]))
        # Of K and V, fp8 keeps three digits of a mantissa.
        assert len(errors) > 2 * len(PROMPTS) and sorted(errors)[len(errors) // 2] <= 3 * BF16_ERROR
        found = server.probe(tmp_path)
    assert found["wrong"] == [] and found["valid"] > 0 and found["reads"]["sparse"] > 0
