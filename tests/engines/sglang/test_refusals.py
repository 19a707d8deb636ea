"""Servers that are refused before they load anything: the message names the flag, or what the model has."""

import json
from types import SimpleNamespace

import pytest
import torch

from tests.engines.sglang.serving import FLOWS
from vortex.engines.sglang import compat, refusals
from vortex.engines.sglang.errors import REFUSALS, StartError
from vortex.engines.sglang.plugin import require_loaded

CURRENT = compat.installed_version() != "0.5.16"


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    require_loaded()
    monkeypatch.setenv("VORTEX_ALGORITHM", f"{FLOWS}:Remembering")


def resolved(model, *flags, backend=("--attention-backend", "vortex")):
    from sglang.srt.server_args import prepare_server_args

    given = ["--model-path", str(model), "--device", "cpu", "--grammar-backend", "none", *backend, *flags]
    server_args = prepare_server_args(given)
    compat.resolve_now(server_args)
    return compat.resolved(server_args)


def refused(model, code, *parts, flags=(), **named):
    with pytest.raises(StartError) as caught:
        resolved(model, *flags, **named)
    assert caught.value.code == code
    for part in parts:
        assert part in str(caught.value)


def test_the_page_size_follows_the_blocks(model, monkeypatch):
    assert resolved(model).page_size == 16
    monkeypatch.setenv("VORTEX_SET", "block_size=32")
    assert resolved(model).page_size == 32
    assert resolved(model, "--page-size", "64").page_size == 64


@pytest.mark.parametrize("size", ["1", "12"])
def test_a_page_size_that_is_no_multiple_of_the_block_size(model, size):
    refused(model, "VTX624", f"--page-size {size}", "block_size 8", flags=["--page-size", size])


FLAGS = [
    ("--speculative-algorithm", "NGRAM"), ("--attn-cp-size", "2"), ("--enable-two-batch-overlap",),
    ("--enable-mixed-chunk",), ("--enable-torch-compile",), ("--kv-cache-dtype", "fp8_e5m2"), ("--pp-size", "2"),
    ("--attn-dp-size", "2") if CURRENT else ("--enable-dp-attention",),
]  # fmt: skip


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag[0])
def test_a_flag_that_does_not_go_with_the_backend_is_named(model, flag):
    more = {"--attn-cp-size": ["--tp-size", "2"], "--attn-dp-size": ["--tp-size", "2"],
            "--enable-dp-attention": ["--tp-size", "2", "--dp-size", "2"]}.get(flag[0], [])  # fmt: skip
    refused(model, "VTX622", flag[0], flags=[*flag, *more])


def test_every_refused_flag_is_one_that_sglang_has_or_had():
    from sglang.srt.server_args import ServerArgs

    fields = set(getattr(ServerArgs, "__struct_fields__", None) or ServerArgs.__dataclass_fields__)
    later = {"attn_dp_size", "enable_kv_cache_sharding", "enable_nvidia_megakernel"}
    assert {flag.field for flag in refusals.FLAGS} - fields <= later
    assert CURRENT is False or {flag.field for flag in refusals.FLAGS} <= fields
    for flag in refusals.FLAGS:
        assert flag.flag == "--" + flag.field.replace("_", "-")


def test_other_backends_are_left_alone(model):
    view = resolved(model, "--enable-mixed-chunk", backend=("--attention-backend", "torch_native"))
    assert view.page_size == 1


def test_prefill_alone(model):
    backend = ("--prefill-attention-backend", "vortex", "--decode-attention-backend", "torch_native")
    refused(model, "VTX625", "--prefill-attention-backend", backend=backend)


def test_decode_alone_is_served(model):
    backend = ("--prefill-attention-backend", "torch_native", "--decode-attention-backend", "vortex")
    assert resolved(model, backend=backend).page_size == 16


def test_a_model_that_sglang_gives_another_backend():
    from sglang.srt.arg_groups.overrides import ResolvedView

    given = SimpleNamespace(
        attention_backend="vortex", decode_attention_backend=None, prefill_attention_backend=None
    )
    with pytest.raises(StartError, match=r"VTX626: .* with fa3, although --attention-backend vortex"):
        refusals.decide(ResolvedView(given, {"attention_backend": "fa3"}))


def test_no_algorithm_is_said_at_once(model, monkeypatch):
    monkeypatch.delenv("VORTEX_ALGORITHM")
    refused(model, "VTX601", "VORTEX_ALGORITHM")


def test_a_flow_with_errors_is_said_at_once(model, monkeypatch):
    monkeypatch.setenv("VORTEX_SET", "budgets=7")
    refused(model, "VTX605", "VTX104", "budgets")


def test_layers_of_the_flow_are_those_of_the_model(model, monkeypatch):
    monkeypatch.setenv("VORTEX_SET", "dense_layers=2")
    refused(model, "VTX605", "VTX108")


def written(folder, config, architecture):
    config.architectures = [architecture]
    config.save_pretrained(folder)
    return folder


def test_latent_attention(tmp_path):
    from transformers import DeepseekV3Config

    folder = written(tmp_path, DeepseekV3Config(num_hidden_layers=2), "DeepseekV3ForCausalLM")
    refused(folder, "VTX623", "DeepseekV3ForCausalLM", "MLA")


def test_layers_with_a_sliding_window(tmp_path):
    from transformers import Gemma3TextConfig

    folder = written(tmp_path, Gemma3TextConfig(num_hidden_layers=6), "Gemma3ForCausalLM")
    refused(folder, "VTX623", "sliding_attention")


def test_layers_that_are_not_attention(tmp_path):
    from sglang.srt.configs.model_config import ModelConfig
    from transformers import Qwen3NextConfig

    written(tmp_path, Qwen3NextConfig(num_hidden_layers=4), "Qwen3NextForCausalLM")
    with pytest.raises(StartError, match=r"VTX623: Qwen3NextForCausalLM .*attention"):
        refusals.check_model(ModelConfig(str(tmp_path)))


class Layer(torch.nn.Module):
    def __init__(self, number: int, **changes) -> None:
        super().__init__()
        from sglang.srt.layers.radix_attention import RadixAttention

        self.attn = RadixAttention(4, 32, 32**-0.5, 2, number, **changes)


CONFIG = SimpleNamespace(hf_config=SimpleNamespace(architectures=["Some"]))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"logit_cap": 30.0}, "caps its logits"),
        ({"sliding_window_size": 128}, "sliding window"),
        ({"is_cross_attention": True}, "causal"),
        ({"v_head_dim": 16}, "V of 16"),
    ],
)
def test_an_attention_layer_of_another_kind(changes, part):
    with pytest.raises(StartError, match=r"VTX623.*layer 1") as caught:
        refusals.check_layers(torch.nn.ModuleList([Layer(0), Layer(1, **changes)]), 2, CONFIG)
    assert part in str(caught.value)


def test_a_layer_without_attention_or_a_window_over_all():
    with pytest.raises(StartError, match=r"2 layers have attention layers \[0\]"):
        refusals.check_layers(torch.nn.ModuleList([Layer(0)]), 2, CONFIG)
    with pytest.raises(StartError, match="a sliding window of 4096 tokens"):
        refusals.check_layers(torch.nn.ModuleList([Layer(0)]), 1, CONFIG, 4096)


def test_plain_layers_pass():
    refusals.check_layers(torch.nn.ModuleList([Layer(0), Layer(1)]), 2, CONFIG)


def test_the_guide_lists_every_refusal():
    from pathlib import Path

    guide = (Path(refusals.__file__).parents[3] / "docs" / "sglang.md").read_text(encoding="utf-8")
    for slug, refusal in REFUSALS.items():
        assert refusal.code in guide, slug
    for flag in refusals.FLAGS:
        assert f"`{flag.flag}`" in guide


def test_a_configuration_that_names_the_algorithm(model, monkeypatch):
    monkeypatch.delenv("VORTEX_ALGORITHM")
    given = {"vortex": {"algorithm": f"{FLOWS}:Remembering", "set": {"block_size": 64}}}
    assert resolved(model, "--json-model-override-args", json.dumps(given)).page_size == 64
