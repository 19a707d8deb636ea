"""Two ranks: KV heads, entries, state and parameters are split by head, and decode as one rank does."""

import os

import pytest

from tests.engines.sglang.models import prompt
from tests.engines.sglang.serving import compare_with_embedded, embedded, sparse

ERROR = 1e-4


@pytest.fixture(autouse=True)
def two_places(monkeypatch):
    # SGLang binds each rank to cores of its own.
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")


@pytest.mark.parametrize("flow", ["Weighed", pytest.param("Remembering", marks=pytest.mark.slow)])
def test_two_ranks_decode_as_one(model, flow):
    engine = embedded(model, flow)
    prompts = [prompt(length, 40) for length in (3, 65, 200)]
    with sparse(model, flow, tp_size=2) as server:
        for each, generated in zip(prompts, server.generate(prompts, 24), strict=True):
            compare_with_embedded(engine, each, generated, ERROR)
