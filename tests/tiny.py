"""A tiny Llama with random weights and a tokenizer of words, as a folder that `load` reads."""

from pathlib import Path

WORDS = ["the", "of", "a", "block", "page", "head", "group", "budget", "sink", "recent", "row", "chunk"]


def word_model(folder: Path, context: int = 256) -> Path:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate([*WORDS, "[UNK]"])}
    words = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(numbers), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=context, initializer_range=0.2, eos_token_id=None,
        bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
