"""Prompts that another server read: their K and V arrive by NIXL, and decode steps here select among them.

On a CPU: python -m pytest tests/engines/sglang/test_transfer.py -m slow; on a GPU: with -m gpu.
"""

import pytest
import torch

from tests.engines.sglang.models import prompt
from tests.engines.sglang.prefill import TRANSFER, prefilling, transferred
from tests.engines.sglang.serving import GPU, as_embedded, embedded, sparse
from tests.engines.sglang.test_roles import UNPINNED
from tests.engines.sglang.test_soak import nothing_wrong

pytest.importorskip("nixl", reason="what transfers K and V here: pip install nixl nixl-cu13")
pytestmark = pytest.mark.gpu if GPU else pytest.mark.slow

LENGTHS = (1, 8, 9, 17, 64, 65, 130, 300)
"""Around blocks of 8, pages of 16 and chunks of 64."""

TOKENS = 24 if GPU else 12
DECODE = {
    "disaggregation_mode": "decode",
    "max_total_tokens": 1024,
    "num_reserved_decode_tokens": 16,
    **TRANSFER,
    **({"cuda_graph_bs_decode": [1, 4, 8]} if GPU else UNPINNED),
    "base_gpu_id": max(torch.cuda.device_count() - 1, 0),
}
"""The pool holds eight requests once: those that come next get their pages. The prefill server has the first GPU."""


@pytest.fixture(scope="module")
def engine(model):
    return embedded(model, "Remembering")


@pytest.fixture(scope="module")
def servers(model, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "prefill.log"
    with prefilling(model, log) as prefill, sparse(model, "Remembering", **DECODE) as decode:
        prefill.wait()
        yield prefill, decode


def idle(server, tmp_path):
    """What the server holds when nothing runs, and nothing of it is wrong."""
    found = server.probe(tmp_path)
    nothing_wrong(found)
    assert found["reads"]["sparse"] > 0
    return found


def test_transferred_prompts_decode_as_the_embedded_engine(servers, engine, tmp_path):
    prefill, decode = servers
    first = [prompt(length, 70) for length in LENGTHS]
    # The last three begin as earlier ones did: these pages are sent before the rest of the prompt was read.
    again = [[*first[-1][:100], *prompt(60, 72)], [*first[-2][:96], *prompt(1, 73)], first[-3]]
    for room, prompts in ((100, first), (200, [*(prompt(length, 71) for length in LENGTHS[:5]), *again])):
        answers = transferred(prefill, decode, prompts, TOKENS, room)
        assert all(len(generated.tokens) == TOKENS for generated in answers)
        as_embedded(engine, prompts, answers)
        finished = sum((len(ids) + TOKENS - 2) // 8 for ids in prompts)
        assert idle(decode, tmp_path)["valid"] >= finished
    assert [each.cached for each in answers[-3:]] == [96, 96, 64]


def test_pages_that_a_retracted_request_gets_back(servers, engine, tmp_path):
    prefill, decode = servers
    # Eight requests that need 1,400 tokens together in a pool of 1,024. SGLang keeps K and V of those that lose
    # their pages on the host, and puts them into others; their state begins anew.
    prompts, tokens = [prompt(100, seed) for seed in range(80, 88)], 75
    answers = transferred(prefill, decode, prompts, tokens, 300)
    assert all(len(generated.tokens) == tokens for generated in answers)
    assert any(generated.retracted for generated in answers)
    idle(decode, tmp_path)
    kept = [each for each in zip(prompts, answers, strict=True) if not each[1].retracted]
    assert kept
    as_embedded(engine, *zip(*kept[:2], strict=True))


def test_a_prefix_that_the_decode_server_has_is_not_sent_again(model, engine, tmp_path):
    given = {**DECODE, "disaggregation_decode_enable_radix_cache": True}
    with prefilling(model, tmp_path / "log") as prefill, sparse(model, "Remembering", **given) as decode:
        prefill.wait()
        start = prompt(200, 90)
        (first,) = transferred(prefill, decode, [start], TOKENS, 100)
        as_embedded(engine, [start], [first])
        begun = [[*start[:length], *prompt(30, length)] for length in (64, 100, 192)]
        answers = transferred(prefill, decode, begun, TOKENS, 200)
        assert [each.cached for each in answers] == [64, 96, 192]
        as_embedded(engine, begun, answers)
        # K and V of what was generated come from sparse steps: the decode server alone has them.
        (last,) = transferred(prefill, decode, [[*start, *first.tokens, *prompt(20, 91)]], TOKENS, 300)
        assert last.cached == (len(start) + TOKENS - 1) // 16 * 16
        idle(decode, tmp_path)
