"""A tiny flow by hand and tiny models with weights of a real model's scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vortex.engines.transformers.model import LoadedModel, adopt
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection


@dataclass
class Memory:
    means: Tensor  # [layers, pool blocks, kv heads, dim]
    ages: Tensor  # [layers, slots]: decode steps of the request, to prove that slots are reset


class MeanTopK:
    """Blocks with the largest mean key times mean query, per (request, KV head)."""

    def __init__(self, block_size: int = 4, budget: int = 3) -> None:
        self.block_size = block_size
        self.budget = budget
        self.selected = 0
        self.summarised: list[tuple[int, list[int]]] = []
        self.entry_bytes = 0

    def allocate(self, *, layers: int, pool_blocks: int, slots: int, max_blocks: int, heads: Heads,
                 device: torch.device) -> Memory:  # fmt: skip
        self.entry_bytes = heads.dim * 4
        # What was never written must not be read: NaN would show.
        means = torch.full((layers, pool_blocks, heads.kv, heads.dim), torch.nan, device=device)
        return Memory(means, torch.full((layers, slots), -1000, device=device))

    def reset_slot(self, storage: Memory, slot: int) -> None:
        storage.ages[:, slot] = 0

    def summarise(self, storage: Memory, layer: int, pool: KVPool, block_ids: Tensor) -> None:
        self.summarised.append((layer, block_ids.tolist()))
        keys = pool.tensors["k"].unflatten(0, (-1, self.block_size))
        storage.means[layer, block_ids] = keys[block_ids].float().mean(dim=1)

    def select(self, storage: Memory, layer: int, q: Tensor, pool: KVPool, batch: Batch) -> Selection:
        self.selected += 1
        storage.ages[layer, batch.slots.long()] += 1
        heads = batch.heads
        lengths = batch.lengths.tolist()
        width = max(min(-(-length // self.block_size), self.budget) for length in lengths)
        width = max(width, 1)
        ids = torch.full((batch.requests, heads.kv, width), -1, dtype=torch.int32, device=q.device)
        counts = torch.zeros(batch.requests, heads.kv, dtype=torch.int32, device=q.device)
        queries = q.unflatten(1, (heads.kv, heads.group)).float().mean(dim=2)
        for row, length in enumerate(lengths):
            finished = (length - 1) // self.block_size
            means = storage.means[layer, batch.pool_blocks(row, finished)]
            scores = torch.einsum("bhd,hd->hb", means, queries[row])
            chosen = scores.topk(min(finished, self.budget - 1), dim=1).indices.sort(dim=1).values
            ids[row, :, : chosen.shape[1]] = chosen.to(torch.int32)
            ids[row, :, chosen.shape[1]] = finished
            counts[row] = chosen.shape[1] + 1
        dense = (batch.lengths + self.block_size - 1) // self.block_size <= self.budget
        return Selection(ids, counts, dense)


def tiny_model(kind: str = "llama", query: int = 4, kv: int = 2, dim: int = 16, **settings) -> LoadedModel:
    """2 layers, vocabulary 97, weights with a standard deviation as trained ones have."""
    import transformers

    config_class, model_class = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    }[kind]
    settings = {"sliding_window": None, **settings} if kind == "mistral" else settings
    config = config_class(
        vocab_size=97, hidden_size=dim * query, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=query, num_key_value_heads=kv, head_dim=dim, max_position_embeddings=256,
        initializer_range=0.2, eos_token_id=None, bos_token_id=None, pad_token_id=None, **settings,
    )  # fmt: skip
    torch.manual_seed(0)
    return adopt(model_class(config))


def words(count: int, seed: int = 1) -> list[int]:
    """Random token ids."""
    return torch.randint(0, 97, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
