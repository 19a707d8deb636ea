"""What is measured: models by their shape, servers, and what each is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vortex.bench.models import MODELS

BLOCK = 16
CONTEXT = 36864
ALGORITHM = "algorithms/block_topk.py"
BUDGETS = (32, 64, 128, 256)

SHAPES = tuple(name for name in MODELS if name.startswith("Qwen3-"))


def config(name: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What SGLang reads of a model's `config.json`, with some keys changed."""
    model = MODELS[name]
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": model.hidden,
        "intermediate_size": model.mlp, "num_hidden_layers": model.layers,
        "num_attention_heads": model.query_heads, "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim, "vocab_size": model.vocabulary, "tie_word_embeddings": model.tied,
        "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "attention_bias": model.qkv_bias, "torch_dtype": "bfloat16", "bos_token_id": 151643,
        "eos_token_id": 151645, **(changes or {}),
    }  # fmt: skip


@dataclass(frozen=True)
class Load:
    """Requests of random tokens, all different.

    requests  at once, or where `rate` is given, sent at random times, `rate` a second on average
    input     tokens of a prompt; output: tokens to generate
    """

    requests: int
    input: int
    output: int
    rate: float | None = None

    @property
    def name(self) -> str:
        sent = f"{self.requests}x" if self.rate is None else f"{self.rate:g}/s "
        return f"{sent}{self.input}+{self.output}"


@dataclass(frozen=True)
class Case:
    """One server and what it is asked.

    kind    "flashinfer" is SGLang's backend as it starts by default, "flashinfer-tc" with its tensor cores on,
            "vortex-N" ours with a budget of N blocks, "vortex-full" with one that covers every context
    """

    group: str
    model: str
    kind: str
    loads: tuple[Load, ...] = field(default=())

    @property
    def name(self) -> str:
        return f"{self.group}/{self.model}/{self.kind}"

    @property
    def key(self) -> tuple[str, str, str]:
        return self.group, self.model, self.kind

    @property
    def values(self) -> dict[str, Any] | None:
        """Hyper-parameters of the flow, None for SGLang's own backends."""
        if not self.kind.startswith("vortex"):
            return None
        budget = self.kind.removeprefix("vortex-")
        return {"block_size": BLOCK, "budget": CONTEXT // BLOCK if budget == "full" else int(budget)}

    @property
    def environment(self) -> dict[str, str]:
        return {"SGLANG_FLASHINFER_USE_TENSOR_CORE": "true"} if self.kind == "flashinfer-tc" else {}

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(value: dict[str, Any]) -> Case:
        return Case(**{**value, "loads": tuple(Load(**each) for each in value["loads"])})


def cases() -> Iterator[Case]:
    """Everything, the most important first."""
    dense = ("flashinfer", "flashinfer-tc")
    decode = (Load(16, 32768, 400),)
    for kind in (*dense, "vortex-128", "vortex-full", "vortex-32", "vortex-64", "vortex-256"):
        yield Case("holds", "Qwen3-1.7B", kind, decode)
    sparse = tuple(f"vortex-{budget}" for budget in BUDGETS)
    for model in SHAPES:
        for kind in (*dense, *sparse):
            yield Case("long-prompts", model, kind, (Load(16, 16384, 200), Load(16, 32768, 200)))
    for model in SHAPES:
        for kind in (*dense, *sparse):
            yield Case("long-outputs", model, kind, (Load(16, 1024, 4096), Load(16, 4096, 16384)))
    for model in SHAPES:
        for kind in (*dense, "vortex-128"):
            loads = tuple(Load(max(16, 8 * rate), 8192, 256, rate) for rate in (1, 2, 4, 8))
            yield Case("latency", model, kind, loads)
