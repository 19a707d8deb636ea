"""Flows written in a test, traced for a small model and evaluated eagerly for one KV head."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vortex.dsl.ir import Program, Shape
from vortex.dsl.load import trace_file
from vortex.dsl.policy import Budget
from vortex.vtensor.evaluate import Evaluation, Run
from vortex.vtensor.weights import load_weights

SMALL = Shape(query_heads=6, kv_heads=2, head_dim=8, layers=2)
BLOCKS = 37
_numbers = itertools.count()


def flow(tmp_path: Path, indexer: str, cache: str = "", **policy: Any) -> Program:
    """The program of a flow with these method bodies; fails with the diagnostics where there are errors."""
    lines = ["from vortex import *", "", "class F(vFlow):", "    block_size = 4", "    budget = 9"]
    lines += [f"    {name} = {value!r}" for name, value in policy.items()]
    for signature, body in (("forward_cache(c)", cache), ("forward_indexer(q, c)", indexer)):
        if body:
            lines += [f"    def {signature}:"] + [
                f"        {line.strip()}" for line in body.strip().splitlines()
            ]
    path = tmp_path / f"flow{next(_numbers)}.py"
    path.write_text("\n".join(lines) + "\n")
    traced = trace_file(path, shape=SMALL)
    assert traced.program is not None, [error.message for error in traced.errors]
    return traced.program


@dataclass(frozen=True)
class Outcome:
    """Stores by name, the chosen blocks, the scores that a final topK ranked, and the largest magnitude on the way."""

    stores: dict[str, Any]
    chosen: list[int]
    scores: torch.Tensor | None
    largest: float


def evaluate(
    program: Program, seed: int = 0, blocks: int = BLOCKS, dtype: torch.dtype = torch.float64
) -> Outcome:
    """One KV head of one request on random keys, values and queries; entries are kept without rounding."""
    generator = torch.Generator().manual_seed(seed)
    size, shape = program.policy.block_size, program.shape

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)

    inputs = {"k": random(blocks, size, shape.head_dim), "v": random(blocks, size, shape.head_dim)}
    q = random(shape.group, shape.head_dim)
    weights = load_weights(program)

    def weight(name: str) -> torch.Tensor:
        declared = program.weight(name)
        value = weights[name][0] if declared.per_layer else weights[name]
        return value[0] if declared.per_kv else value

    def run(sources: dict[str, Any], lanes: int) -> Run:
        return Run({"weight": weight, **sources}, lanes=lanes, blocks=blocks, sinks=1, recent=1, dtype=dtype,
                   take=lambda k: (9 if k is None else _size(k)) - 1, device=torch.device("cpu"))  # fmt: skip

    cache = Evaluation(program.cache, varying=["Input"])
    summaries = run({"input": inputs.__getitem__}, blocks)
    cache.evaluate(summaries)
    entries = {store.name: cache.tensor(summaries, store.value) for store in program.cache.stores}

    def state(name: str) -> torch.Tensor:
        declared = program.state(name)
        sizes = [blocks if axis.size is None else axis.size for axis in declared.axes]
        return torch.full(sizes, declared.default, dtype=torch.bool if declared.dtype == "bool" else dtype)

    whole = run({
        "input": lambda name: q if name == "q" else inputs[name],
        "entry": entries.__getitem__,
        "state": state,
    }, 1)  # fmt: skip
    Evaluation(program.indexer, varying=()).evaluate(whole)
    result = program.indexer.result
    node = program.indexer.nodes[result]
    scores = whole.values[node.inputs[0]] if node.op in ("topK", "topP", "Threshold") else None
    stores = {store.name: whole.values[store.value] for store in program.indexer.stores}
    floats = [
        value
        for value in whole.values
        if torch.is_tensor(value) and value.is_floating_point() and value.numel()
    ]
    largest = max((value.abs().max().item() for value in floats), default=0.0)
    return Outcome(stores, whole.members(result).tolist(), scores, largest)


def _size(k: int | str) -> int:
    return Budget.parse(k).evaluate(tokens=BLOCKS * 4 + 1, block_size=4)


def assert_same(
    before: Program, after: Program, seed: int = 0, scores: bool = True, exact: bool = False
) -> None:
    """Both programs choose the same blocks and store the same values, to 1e-12 of the largest (or bit for bit)."""
    one, two = evaluate(before, seed), evaluate(after, seed)
    assert one.chosen == two.chosen
    pairs = [(one.stores[name], two.stores[name]) for name in two.stores]
    if scores and one.scores is not None:
        pairs.append((one.scores, two.scores))
    for left, right in pairs:
        assert left.shape == right.shape
        if exact or not left.is_floating_point():
            assert torch.equal(left.nan_to_num(7.25), right.nan_to_num(7.25))
        else:
            scale = left[left.isfinite()].abs().max().item() if left.isfinite().any() else 1.0
            torch.testing.assert_close(right, left, rtol=0, atol=1e-12 * max(scale, 1e-300), equal_nan=True)


def ops(program: Program, which: str = "indexer") -> list[str]:
    return [node.op for node in getattr(program, which).nodes]
