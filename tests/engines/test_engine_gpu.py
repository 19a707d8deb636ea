"""The embedded engine on a CUDA device gives what it gives on a CPU."""

import copy
from pathlib import Path

import pytest
import torch
from support import MeanTopK, tiny_model, words

from vortex.attention.reference import ReferenceProvider
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_file
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


def test_compiled_kernels_give_what_the_reference_gives_on_a_cpu():
    host = tiny_model(dim=64)
    device = adopt(copy.deepcopy(host.model).to("cuda"))
    heads = host.heads
    path = Path(__file__).parents[2] / "algorithms" / "block_topk.py"
    shape = Shape(heads.query, heads.kv, heads.dim, host.layers)
    program = trace_file(path, {"block_size": 16, "budget": 4}, shape).program
    found = []
    for loaded in (host, device):
        engine = Engine(loaded, program, pool_tokens=1024)
        with engine.open([words(length, seed=length) for length in (133, 7, 64)], 8) as session:
            rows = [session.step([token] * 3).cpu() for token in words(8)]
            found.append((torch.stack(rows), session.meter.total()))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=2e-2, atol=2e-2)
    assert found[0][1].sparse_calls == found[1][1].sparse_calls > 0
