"""The embedded engine on a CUDA device gives what it gives on a CPU."""

import copy

import pytest
import torch
from support import MeanTopK, tiny_model, words

from vortex.engines.transformers.engine import Engine
from vortex.engines.transformers.model import adopt

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dense", [False, True])
def test_logits_on_a_gpu_are_those_of_a_cpu(dense):
    host = tiny_model()
    device = adopt(copy.deepcopy(host.model).to("cuda"))
    prompts = [words(33), words(7, seed=2), words(16, seed=3)]
    rows = []
    for model in (host, device):
        engine = Engine(model, MeanTopK(), page_size=8, pool_tokens=256, dense=dense)
        with engine.open(prompts, 8) as session:
            rows.append([session.logits.cpu()] + [session.step([token] * 3).cpu() for token in words(8)])
            counters = session.meter.total()
    for ours, expected in zip(rows[1], rows[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)
    assert counters.sparse_calls == (0 if dense else 2 * (8 + 3 + 8))
