"""A Qwen3 of two layers with random weights of a real model's scale, and a tokenizer of single letters."""

from __future__ import annotations

import json
from pathlib import Path

import torch

VOCABULARY = 512
CONTEXT = 1024
LETTERS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,:;!?0123456789"


def write(
    folder: Path, kv_heads: int = 2, head_dim: int = 32, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Path:
    """Writes weights (safetensors), configuration and tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=kv_heads, head_dim=head_dim, max_position_embeddings=CONTEXT,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config).float()
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            # A sum over inputs of size 1 gives outputs of size 1, so that attention decides what comes out.
            torch.nn.init.normal_(weight, std=1.0 if "embed" in name else weight.shape[1] ** -0.5)
        elif "q_norm" in name:
            torch.nn.init.constant_(weight, 3.0)  # attention as uneven as a trained model's
    model.to(dtype).save_pretrained(folder)
    _tokenizer(folder)
    return folder


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"<{number}>": number for number in range(VOCABULARY)}
    for number, letter in enumerate(LETTERS, 2):
        del words[f"<{number}>"]
        words[letter] = number
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<0>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<0>", eos_token="<1>", unk_token="<0>"
    )
    wrapped.chat_template = "{% for message in messages %}{{ message['content'] }}:{% endfor %}"
    wrapped.save_pretrained(folder)


def prompt(length: int, seed: int) -> list[int]:
    """Token ids without the special ones."""
    generator = torch.Generator().manual_seed(seed * 1000 + length)
    return torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()


def configuration(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())
