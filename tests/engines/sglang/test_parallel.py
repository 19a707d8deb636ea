"""Two ranks: KV heads, entries, state and parameters are split by head, and decode as one rank does.

On a CPU, or with -m gpu on a machine with two GPUs.
"""

import os

import pytest
import torch

from tests.engines.sglang.models import prompt
from tests.engines.sglang.serving import GPU, as_embedded, embedded, sparse

TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two ranks take two GPUs")
pytestmark = [pytest.mark.gpu, TWO] if GPU else []
GRAPHS = {"cuda_graph_bs_decode": [1, 4]} if GPU else {}


@pytest.fixture(autouse=True)
def two_places(monkeypatch):
    # SGLang binds each rank to cores of its own.
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")


@pytest.mark.parametrize("flow", ["Weighed", pytest.param("Remembering", marks=pytest.mark.slow)])
def test_two_ranks_decode_as_one(model, flow, tmp_path):
    engine = embedded(model, flow)
    prompts = [prompt(length, 40) for length in (3, 65, 200)]
    with sparse(model, flow, tp_size=2, **GRAPHS) as server:
        as_embedded(engine, prompts, server.generate(prompts, 24))
        found = server.probe(tmp_path)
    assert found["wrong"] == [] and found["reads"]["sparse"] > 0
