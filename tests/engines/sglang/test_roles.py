"""A backend that decodes and never sees a prompt: its blocks are summarised at the start of a decode step."""

from tests.engines.sglang.models import prompt
from tests.engines.sglang.serving import Server, compare_with_embedded, embedded, sampling, sparse
from vortex.engines.sglang import compat

LENGTHS = (1, 30, 65, 200)
PROMPTS = [prompt(length, 60) for length in LENGTHS]
TOKENS = 24


def finished_blocks() -> int:
    """Blocks of 8 that the last step of each request takes for finished."""
    return sum((length + TOKENS - 2) // 8 for length in LENGTHS)


def test_prompts_by_another_backend(model, tmp_path):
    backends = {"prefill_attention_backend": "torch_native", "decode_attention_backend": "vortex"}
    engine = embedded(model, "Remembering")
    with sparse(model, "Remembering", **backends) as server:
        for each, generated in zip(PROMPTS, server.generate(PROMPTS, TOKENS), strict=True):
            compare_with_embedded(engine, each, generated, 1e-4)
        found = server.probe(tmp_path)
    assert found["wrong"] == [] and found["valid"] >= finished_blocks()


def decode_role(server: Server, tmp_path) -> None:
    """Prompts arrive by SGLang's stand-in for a transfer, which leaves in their pages what lay there."""
    count = len(PROMPTS)
    transfer = {"bootstrap_host": ["2.2.2.2"] * count, "bootstrap_port": [8998] * count}
    answers = server.engine.generate(
        input_ids=PROMPTS,
        sampling_params=sampling(TOKENS),
        bootstrap_room=list(range(1, count + 1)),
        **transfer,
    )
    assert all(len(each["output_ids"]) == TOKENS for each in answers)
    found = server.probe(tmp_path)
    assert found["wrong"] == [] and found["valid"] >= finished_blocks()
    assert found["reads"]["sparse"] > 0 and found["tokens"] == found["all_tokens"]


OLDEST = compat.installed_version() == "0.5.16"
UNPINNED = {} if OLDEST else {"disaggregation_decode_retraction_backup": "cpu_tensor"}
"""0.5.23 would otherwise pin host memory for this role, which takes CUDA."""

ROLE = {"disaggregation_mode": "decode", "disaggregation_transfer_backend": "fake"}


def test_prompts_by_transfer(model, tmp_path):
    with sparse(model, "Remembering", **ROLE, **UNPINNED) as server:
        decode_role(server, tmp_path)
