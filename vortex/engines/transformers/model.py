"""Loading a model from a local folder, and refusing what sparse decoding cannot express."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vortex.engines.transformers.attention import NAME as ATTENTION
from vortex.engines.transformers.attention import register
from vortex.engines.transformers.demo import ModelError, Progress, demo_folder
from vortex.vtensor.batch import Heads


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model whose attention is ours.

    tokenizer  None where the folder has none: prompts are token ids then
    layers     decoder layers
    context    tokens that the model's positions allow
    stop       token ids that end a text, from the model's generation settings and its tokenizer
    """

    model: Any
    tokenizer: Any
    heads: Heads
    layers: int
    context: int
    stop: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def device(self) -> torch.device:
        return self.model.device

    def encode(self, text: str, chat: bool = False) -> list[int]:
        """Token ids of a text; with `chat`, of one user message in the model's chat template."""
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise ModelError("the model's folder holds no tokenizer: give prompts as lists of token ids")
        if not chat:
            return list(tokenizer(text).input_ids)
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError("the model has no chat template: run it with plain prompts")
        message = [{"role": "user", "content": text}]
        rendered = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(rendered, add_special_tokens=False).input_ids)


def load(
    folder: str | Path | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> LoadedModel:
    """Loads a local model folder (config, safetensors, tokenizer), or the demo model for None.

    dtype: fp32 on a CPU and what the folder says elsewhere, unless given. Never asks a hub. Raises
    ModelError.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = demo_folder(progress) if folder is None else Path(folder)
    if not (path / "config.json").is_file():
        raise ModelError(
            f"{path} is no model folder: it needs config.json, *.safetensors and a tokenizer "
            "(names of hub models are not looked up)"
        )
    device = usable(device)
    wanted = dtype if dtype is not None else (torch.float32 if device.type == "cpu" else "auto")
    register()
    with quiet():
        tokenizer = None
        if any(
            (path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
        ):
            tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        try:
            model = AutoModelForCausalLM.from_pretrained(
                str(path), dtype=wanted, attn_implementation=ATTENTION, local_files_only=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"{path}: Transformers cannot load this model: {error}") from error
    model.to(device)  # type: ignore[arg-type]
    return adopt(model, tokenizer)


def usable(device: str | torch.device) -> torch.device:
    """The device, or ModelError where torch does not know it or this machine does not have it."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # a torch without CUDA asserts
        reason = str(error).partition("\n")[0].removesuffix(".")
        raise ModelError(
            f"device {str(device)!r} cannot be used here ({reason}): take cpu or cuda"
        ) from error
    if found.type not in ("cpu", "cuda"):
        raise ModelError(f"device {str(device)!r} has no kernels here: take cpu or cuda")
    return found


def adopt(model: Any, tokenizer: Any = None) -> LoadedModel:
    """Takes a Transformers causal model that is in memory; switches its attention to ours.

    Raises ModelError where the model has a feature that sparse decoding here cannot express.
    """
    register()
    refuse(model)
    model.eval()
    model.set_attn_implementation(ATTENTION)
    config = model.config.get_text_config()
    query = config.num_attention_heads
    kv = getattr(config, "num_key_value_heads", None) or query
    dim = getattr(config, "head_dim", None) or config.hidden_size // query
    return LoadedModel(
        model, tokenizer, Heads(query, kv, dim), config.num_hidden_layers,
        int(getattr(config, "max_position_embeddings", 2**31)), _stop_ids(model, tokenizer),
    )  # fmt: skip


def refuse(model: Any) -> None:
    """Raises ModelError naming the first feature of the model that is not supported."""
    config = model.config.get_text_config()
    types = getattr(config, "layer_types", None)
    kinds = sorted(set(types or ()) - {"full_attention"})
    # Where layers have types, the window is that of layers of another type, if there are any.
    window = None if types else getattr(config, "sliding_window", None)
    found = None
    if kinds:
        found = f"layers of type {', '.join(kinds)}"
    elif window is not None and getattr(config, "use_sliding_window", True):
        found = f"a sliding window of {window} tokens (sliding_window)"
    elif getattr(config, "attn_logit_softcapping", None):
        found = f"a soft-cap on attention logits of {config.attn_logit_softcapping} (attn_logit_softcapping)"
    elif getattr(config, "model_type", "") == "gpt_oss":
        found = "attention sinks (a learned logit per head)"
    elif getattr(config, "kv_lora_rank", None):
        found = "latent attention (kv_lora_rank)"
    elif getattr(config, "attention_chunk_size", None):
        found = f"chunked attention (attention_chunk_size {config.attention_chunk_size})"
    elif getattr(config, "is_encoder_decoder", False):
        found = "an encoder"
    elif not getattr(type(model), "_supports_attention_backend", False):
        found = "an attention of its own, which no registered function can replace"
    if found:
        raise ModelError(
            f"{type(model).__name__} has {found}, which the embedded engine does not support; "
            "choose a Llama-, Qwen- or Mistral-like model with full attention in every layer"
        )


def _stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    found: list[int] = []
    generation = getattr(model, "generation_config", None)
    for source in (getattr(generation, "eos_token_id", None), getattr(tokenizer, "eos_token_id", None)):
        ids: Sequence[int] = (
            source if isinstance(source, (list, tuple)) else [] if source is None else [source]
        )
        found.extend(int(token) for token in ids if token not in found)
    return tuple(found)


@contextmanager
def quiet() -> Iterator[None]:
    """Holds back the progress bars of Transformers."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
