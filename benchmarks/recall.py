"""Measures how much attention the blocks hold that each algorithm selects: the demo model, real text, the CPU.

The demo model reads passages of Python's reference documentation (pydoc_data.topics) once, densely; q, k and v of
some layers are kept. Every algorithm then selects for the last decode positions of each context, in order, with the
reference executor. Recall is the softmax of scale * q k^T over all tokens, summed over the attended ones; a mean over
query heads, layers, positions and passages. Algorithms with state start `WARM` steps before the first position that
counts.

Every algorithm runs with blocks of 16, no dense layers and a selection of its own in each layer and step, so that rows
compare; hyper-parameters of the shipped files that are a number of blocks are scaled with the budget (`scaled`).

    python benchmarks/recall.py --out benchmarks/results/recall.json [--commit HASH]
    python benchmarks/recall.py quest my_method.py my_method.py:Second oracle random

Algorithms are named as for the commands; without a name all shipped ones are measured. `oracle` takes the blocks of
largest true mass, `random` random ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vortex.dsl.diagnostics import render
from vortex.dsl.ir import Program, Shape
from vortex.dsl.load import trace_file
from vortex.dsl.target import folder, shipped, split_target
from vortex.engines.transformers.demo import NAME
from vortex.engines.transformers.model import LoadedModel, load
from vortex.vtensor.batch import Batch
from vortex.vtensor.pool import KVPool
from vortex.vtensor.reference import ReferenceRunner

BLOCK = 16
CONTEXTS = (2048, 4096)
SHARES = (0.05, 0.1, 0.2)
LAYERS = (3, 9, 15, 21, 27)
PASSAGES = 2
WARM, COUNTED, STRIDE = 24, 4, 8
"""Decode steps of a flow with state before the first position that counts; positions that count, and their distance."""


@dataclass(frozen=True, eq=False)
class Captured:
    """One layer over one passage: q [tokens, query heads, dim], and k, v [tokens, KV heads, dim], after RoPE."""

    q: Tensor
    k: Tensor
    v: Tensor

    @cache  # noqa: B019
    def masses(self, length: int) -> Tensor:
        """Attention of token length - 1 that each block holds: [KV heads, blocks], a mean over the group."""
        k = self.k[:length]
        q = self.q[length - 1].unflatten(0, (k.shape[1], -1))
        weights = (torch.einsum("hgd,lhd->hgl", q, k) * k.shape[-1] ** -0.5).softmax(-1).mean(1)
        blocks = -(-length // BLOCK)
        return (
            torch.nn.functional.pad(weights, (0, blocks * BLOCK - length))
            .unflatten(1, (blocks, BLOCK))
            .sum(-1)
        )


class Capture:
    """A dense causal prefill that keeps q, k and v of some layers."""

    def __init__(self) -> None:
        self.layers: dict[int, Captured] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        if layer in LAYERS:
            self.layers[layer] = Captured(*(each[0].transpose(0, 1).contiguous() for each in (q, k, v)))
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        return out.transpose(1, 2)


def passages(model: LoadedModel) -> list[dict[int, Captured]]:
    """What the layers see of each passage."""
    from pydoc_data.topics import topics

    tokens = model.encode("\n".join(topics[name] for name in sorted(topics)))
    found = []
    for number in range(PASSAGES):
        start = number * len(tokens) // PASSAGES
        ids = torch.tensor(tokens[start : start + max(CONTEXTS)])[None]
        capture = Capture()
        with torch.no_grad():
            model.model(input_ids=ids, use_cache=False, logits_to_keep=1, vortex_step=capture)
        found.append(capture.layers)
    return found


def positions(context: int) -> list[int]:
    """Lengths (newest token included) that count, in order."""
    return [context - STRIDE * step for step in reversed(range(COUNTED))]


def scaled(name: str, budget: int, blocks: int) -> dict[str, Any]:
    """Hyper-parameters for a budget: of a shipped algorithm everything that is a number of blocks."""
    share = budget / blocks
    half = max(budget // 2, 1)
    special: dict[str, dict[str, Any]] = {
        "a_shape": {"first": max(budget // 4, 1), "last": budget - max(budget // 4, 1) - 1},
        "coarse_to_fine": {"candidates": 4 * budget},
        "dilated": {"local": half, "stride": max(math.ceil((blocks - half) / max(budget - half - 1, 1)), 1)},
        "moba": {"top": budget},
        "pyramidkv": {
            "budget": f"{1.8 * share:.6f} * blocks - {1.6 * share:.6f} * blocks * layer / (layers - 1)"
        },
        "shadowkv": {"landmarks": budget - budget // 5, "outliers": budget // 5},
    }
    path = Path(split_target(name)[0])
    own = special.get(path.stem, {}) if path.resolve().parent == folder() else {}
    return {"budget": budget, **own}


FIXED = {"block_size": BLOCK, "dense_layers": "", "dense_below": 0, "reuse_steps": 1, "reuse_layers": 1}


def trace(name: str, model: LoadedModel, settings: dict[str, Any]) -> Program:
    """The program of what names an algorithm. Ends with the findings where it has errors."""
    shape = Shape(model.heads.query, model.heads.kv, model.heads.dim, model.layers)
    traced = trace_file(name, {**FIXED, **settings}, shape)
    if traced.program is None:
        raise SystemExit("\n".join(map(render, traced.errors)))
    return traced.program


class Selector:
    """An algorithm over one passage: what it attends at a length, in one layer.

    summaries  entries of the passage, which no budget changes, by file, flow and passage
    """

    summaries: ClassVar[dict[Any, Any]] = {}

    def __init__(self, program: Program, model: LoadedModel, layers: dict[int, Captured]) -> None:
        self.runner = ReferenceRunner(program)
        self.layers, self.heads = layers, model.heads
        blocks = max(CONTEXTS) // BLOCK
        self.storage = self.runner.allocate(
            layers=model.layers, pool_blocks=blocks, slots=1, max_blocks=blocks, heads=model.heads,
            device=torch.device("cpu"),
        )  # fmt: skip
        self.pools = {layer: KVPool({"k": each.k, "v": each.v}, BLOCK) for layer, each in layers.items()}
        key = (program.file, program.name, id(layers))
        if key not in self.summaries:
            for layer, pool in self.pools.items():
                self.runner.summarise(self.storage, layer, pool, torch.arange(blocks))
            self.summaries[key] = self.storage.entries
        self.storage.entries = self.summaries[key]

    def attended(self, layer: int, length: int) -> Tensor:
        """bool [KV heads, blocks]."""
        table = torch.arange(max(CONTEXTS) // BLOCK, dtype=torch.int32)[None]
        one = torch.tensor([length], dtype=torch.int32)
        batch = Batch(one, table, torch.zeros(1, dtype=torch.int32), BLOCK, BLOCK, self.heads)
        q = self.layers[layer].q[length - 1 : length]
        found = self.runner.select(self.storage, layer, q, self.pools[layer], batch)
        blocks = -(-length // BLOCK)
        chosen = torch.zeros(self.heads.kv, blocks, dtype=torch.bool)
        for head in range(self.heads.kv):
            chosen[head, found.ids[0, head, : int(found.counts[0, head])].long()] = True
        return chosen


def select(
    name: str, model: LoadedModel, layers: dict[int, Captured], context: int, share: float
) -> Iterator[Any]:
    """(layer, length, attended blocks) at the positions that count."""
    budget = math.ceil(share * context / BLOCK)
    program = trace(name, model, scaled(name, budget, context // BLOCK))
    selector = Selector(program, model, layers)
    counted = positions(context)
    lengths = range(counted[0] - WARM, context + 1) if program.states else counted
    for length in lengths:
        for layer in layers:
            chosen = selector.attended(layer, length)
            if length in counted:
                yield layer, length, chosen


def bound(kind: str, masses: Tensor, budget: int, generator: torch.Generator) -> Tensor:
    """Blocks by true mass, or random ones, with the first, the last finished and the current block."""
    score = masses.clone() if kind == "oracle" else torch.rand(masses.shape, generator=generator)
    score[:, [0, -2, -1]] = math.inf
    return torch.zeros_like(masses, dtype=torch.bool).scatter_(1, score.topk(budget, dim=1).indices, True)


def measure(
    name: str, model: LoadedModel, texts: list[dict[int, Captured]], context: int, share: float
) -> dict[str, Any]:
    """Mean recall, its spread over layers, and the share of blocks that were attended."""
    generator = torch.Generator().manual_seed(0)
    budget = math.ceil(share * context / BLOCK)
    recall: dict[int, list[float]] = {layer: [] for layer in LAYERS}
    attended = []
    for layers in texts:
        if name in ("oracle", "random"):
            found: Any = ((layer, length, None) for length in positions(context) for layer in layers)
        else:
            found = select(name, model, layers, context, share)
        for layer, length, chosen in found:
            masses = layers[layer].masses(length)
            if chosen is None:
                chosen = bound(name, masses, min(budget, masses.shape[1]), generator)
            recall[layer].append(float((masses * chosen).sum(1).mean()))
            attended.append(float(chosen.float().mean()))
    means = {layer: sum(each) / len(each) for layer, each in recall.items()}
    return {
        "recall": round(sum(means.values()) / len(means), 4),
        "lowest_layer": round(min(means.values()), 4),
        "attended": round(sum(attended) / len(attended), 4),
    }


def check_full(model: LoadedModel, texts: list[dict[int, Captured]]) -> None:
    """A budget of everything has a recall of 1."""
    for name in ("oracle", "quest", "streaming_llm"):
        assert measure(name, model, texts[:1], min(CONTEXTS), 1.0)["recall"] == 1.0, name


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="ALGORITHM")
    parser.add_argument("--out", type=Path, help="the file to write; without it the recall is printed alone")
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    started = time.perf_counter()
    model = load(None)
    names = options.names or ["oracle", *shipped(), "random"]
    for name in names:
        if name not in ("oracle", "random"):
            trace(name, model, {})  # what is wrong with a file shows before anything is measured
    texts = passages(model)
    print(f"captured in {time.perf_counter() - started:.0f} s", flush=True)
    check_full(model, texts)
    rows: dict[str, Any] = {}
    for name in names:
        before = time.perf_counter()
        rows[name] = {
            str(context): {f"{share:.0%}": measure(name, model, texts, context, share) for share in SHARES}
            for context in CONTEXTS
        }
        shown = [rows[name][str(max(CONTEXTS))][f"{share:.0%}"]["recall"] for share in SHARES]
        print(f"{name:24} {time.perf_counter() - before:6.1f} s {shown}", flush=True)
    document = {
        "what": "share of attention that the attended blocks hold",
        "model": NAME,
        "text": f"pydoc_data.topics of Python {platform.python_version()}",
        "device": f"CPU, {os.environ.get('OMP_NUM_THREADS', torch.get_num_threads())} threads, fp32",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "commit": options.commit,
        "block_size": BLOCK,
        "layers": LAYERS,
        "passages": PASSAGES,
        "positions": COUNTED,
        "stride": STRIDE,
        "warm_steps": WARM,
        "algorithms": rows,
    }
    if options.out is None:
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
