"""Dimensions of decoder models: by name, or from a `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


class ModelError(ValueError):
    """A model that is unknown, or one whose reads this account does not describe."""


@dataclass(frozen=True)
class Model:
    """A Llama-like decoder: gated MLP, grouped-query attention, every layer alike.

    layers, hidden (elements of the residual stream), mlp (elements inside the MLP), query_heads, kv_heads,
    head_dim, vocabulary (tokens); tied: the output matrix is the embedding; query_key_norm: RMS norms of
    one head's width; qkv_bias, out_bias, mlp_bias: biases of these projections.
    """

    name: str
    layers: int
    hidden: int
    mlp: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    query_key_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        sizes = (self.layers, self.hidden, self.mlp, self.query_heads, self.kv_heads, self.head_dim)
        if min(*sizes, self.vocabulary) < 1:
            raise ModelError(f"{self.name}: sizes are positive, got {self}")
        if self.query_heads % self.kv_heads:
            raise ModelError(f"{self.name}: {self.query_heads} query heads on {self.kv_heads} KV heads")

    @property
    def mlp_weights(self) -> int:
        """Elements of the gate, up and down projections of all layers."""
        return self.layers * 3 * self.hidden * self.mlp

    @property
    def attention_weights(self) -> int:
        """Elements of the q, k, v and o projections of all layers."""
        return self.layers * 2 * self.hidden * (self.query_heads + self.kv_heads) * self.head_dim

    @property
    def vectors(self) -> int:
        """Elements of all norms and biases."""
        layer = 2 * self.hidden
        layer += 2 * self.head_dim if self.query_key_norm else 0
        layer += (self.query_heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0
        layer += self.hidden if self.out_bias else 0
        layer += 2 * self.mlp + self.hidden if self.mlp_bias else 0
        return self.layers * layer + self.hidden

    @property
    def output_weights(self) -> int:
        """Elements of the matrix from the last hidden state to the vocabulary."""
        return self.vocabulary * self.hidden

    @property
    def kv_elements(self) -> int:
        """Elements of K and V of one token in all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        matrices = self.mlp_weights + self.attention_weights + self.vectors
        return matrices + self.output_weights * (1 if self.tied else 2)


def _qwen3(name: str, layers: int, hidden: int, mlp: int, query_heads: int, tied: bool = True) -> Model:
    return Model(name, layers, hidden, mlp, query_heads, 8, 128, 151_936, tied, query_key_norm=True)


MODELS = {
    model.name: model
    for model in (
        _qwen3("Qwen3-0.6B", 28, 1024, 3072, 16),
        _qwen3("Qwen3-1.7B", 28, 2048, 6144, 16),
        _qwen3("Qwen3-4B", 36, 2560, 9728, 32),
        _qwen3("Qwen3-8B", 36, 4096, 12_288, 32, tied=False),
        Model("Llama-3.1-8B", 32, 4096, 14_336, 32, 8, 128, 128_256, tied=False),
        Model("Llama-3.2-1B", 16, 2048, 8192, 32, 8, 64, 128_256, tied=True),
        Model("Llama-3.2-3B", 28, 3072, 8192, 24, 8, 128, 128_256, tied=True),
        Model("SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49_152, tied=True),
    )
}


def load_model(source: str) -> Model:
    """The model of that name (an organisation before it, an "-Instruct" behind it and case do not matter),
    or of the `config.json` at that path or in that folder. Raises ModelError."""
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json" or path.is_file():
        return read_config(path)
    wanted = source.rsplit("/", 1)[-1].lower().removesuffix("-instruct")
    names = {name.lower(): name for name in MODELS}
    if wanted in names:
        return MODELS[names[wanted]]
    near = get_close_matches(wanted, names, n=1, cutoff=0.6)
    hint = f"did you mean {names[near[0]]}?" if near else f"known are {', '.join(MODELS)}."
    raise ModelError(f"no model {source!r}; {hint} A path of a config.json is taken as well.")


def read_config(path: Path) -> Model:
    """The model of a Hugging Face `config.json`. Raises ModelError, naming the key."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"no file {path}; give the folder of a model or its config.json") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds no object; a model's config.json is expected")
    config = config.get("text_config", config)
    _refuse_unlike(config, path)
    family = config["model_type"]
    heads = _size(config, path, "num_attention_heads")
    hidden = _size(config, path, "hidden_size")
    bias = bool(config.get("attention_bias", False))
    return Model(
        name=path.resolve().parent.name or str(path),
        layers=_size(config, path, "num_hidden_layers"),
        hidden=hidden,
        mlp=_size(config, path, "intermediate_size"),
        query_heads=heads,
        kv_heads=_size(config, path, "num_key_value_heads", heads),
        head_dim=_size(config, path, "head_dim", hidden // heads),
        vocabulary=_size(config, path, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        query_key_norm=family == "qwen3",
        qkv_bias=bias or family == "qwen2",
        out_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
    )


def _refuse_unlike(config: dict[str, Any], path: Path) -> None:
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ModelError(
            f"{path}: model_type {family!r} is not accounted for; these are: {', '.join(FAMILIES)}"
        )
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    if window or kinds:
        what = f"layer_types {sorted(kinds)}" if kinds else f"sliding_window {window}"
        raise ModelError(f"{path}: {what}: layers that read only part of the KV cache are not accounted for")


def _size(config: dict[str, Any], path: Path, key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{path}: {key} should be a positive integer, got {value!r}")
    return value
