"""The embedded engine on a CUDA device gives what it gives on a CPU."""

import copy

import pytest
import torch
from support import MeanTopK, tiny_model, words

from vortex.attention.reference import ReferenceProvider
from vortex.engines.transformers.engine import Engine
from vortex.engines.transformers.model import adopt

pytestmark = pytest.mark.gpu


def logits(model, block_size, lengths, attention=None, dense=False):
    engine = Engine(
        model, MeanTopK(block_size), attention=attention, page_size=2 * block_size, pool_tokens=64 * block_size,
        dense=dense,
    )  # fmt: skip
    prompts = [words(length, seed=length) for length in lengths]
    with engine.open(prompts, 8) as session:
        rows = [session.logits.cpu()] + [session.step([token] * len(prompts)).cpu() for token in words(8)]
        return torch.stack(rows), session.meter.total()


@pytest.mark.parametrize("dense", [False, True])
def test_logits_on_a_gpu_are_those_of_a_cpu(dense):
    host = tiny_model()
    device = adopt(copy.deepcopy(host.model).to("cuda"))
    expected, counters = logits(host, 4, (33, 7, 16), dense=dense)
    ours, same = logits(device, 4, (33, 7, 16), ReferenceProvider(), dense)
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)
    assert counters == same
    assert same.sparse_calls == (0 if dense else 2 * (8 + 3 + 8))


@pytest.mark.parametrize("dense", [False, True])
def test_the_chosen_provider_gives_what_the_reference_gives(dense):
    host = tiny_model(dim=64)
    device = adopt(copy.deepcopy(host.model).to("cuda"))
    expected, _ = logits(host, 16, (133, 7, 64), dense=dense)
    ours, _ = logits(device, 16, (133, 7, 64), dense=dense)
    torch.testing.assert_close(ours, expected, rtol=2e-2, atol=2e-2)
