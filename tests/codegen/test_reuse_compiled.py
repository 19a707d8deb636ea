"""reuse_steps and reuse_layers in kernels: every row attends what the reference attends."""

from dataclasses import replace

import pytest
import torch
from flows import flow

from vortex.codegen.compiled import CompiledFlow, Options
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.pool import KVPool
from vortex.vtensor.reference import ReferenceRunner

CACHE = 'c["mean"] = Mean(c["k"])'
INDEXER = 'return topK(Mean(GeMM(c["mean"], q.T), dim="head"))'
BLOCK, HEADS, STEPS = 4, Heads(6, 2, 8), 6


def attended(runner, memory, pools, batch, queries):
    """Per layer and request: None for a dense row, otherwise the blocks of each KV head."""
    found = []
    for layer, q in enumerate(queries):
        selection = runner.select(memory, layer, q, pools[layer], batch)
        rows = []
        for row, length in enumerate(batch.lengths.tolist()):
            counts = selection.counts[row].tolist()
            if length and bool(selection.dense[row]):
                rows.append(None)
            else:
                rows.append([selection.ids[row, head, :count].tolist() for head, count in enumerate(counts)])
                assert (selection.ids[row, 0, counts[0] :] == -1).all()
        found.append(rows)
    return found


def decode(program, lengths, steps=STEPS, **options):
    """The same steps with the reference and with the kernels; slot 2 starts anew before step 3."""
    layers, generator = program.shape.layers, torch.Generator().manual_seed(1)
    longest = -(-(max(lengths) + steps) // BLOCK)
    table = torch.arange(len(lengths) * longest, dtype=torch.int32).view(len(lengths), -1)
    slots = torch.tensor([2, 0, 3, 1, 4][: len(lengths)], dtype=torch.int32)
    size = (table.numel() * BLOCK, HEADS.kv, HEADS.dim)
    pools = [KVPool({name: torch.randn(size, generator=generator) for name in ("k", "v")}, BLOCK)
             for _ in range(layers)]  # fmt: skip
    runners = [ReferenceRunner(program, **options), CompiledFlow(program, Options("fp32"), **options)]
    memories = [
        each.allocate(layers=layers, pool_blocks=table.numel(), slots=5, max_blocks=longest, heads=HEADS,
                      device=torch.device("cpu"))
        for each in runners
    ]  # fmt: skip
    results = []
    for runner, memory in zip(runners, memories, strict=True):
        for slot in range(5):
            runner.reset_slot(memory, slot)
        for layer in range(layers):
            runner.summarise(memory, layer, pools[layer], torch.arange(table.numel()))
    for step in range(steps):
        now = torch.tensor([length + step if length else 0 for length in lengths], dtype=torch.int32)
        queries = torch.randn(layers, len(lengths), 6, 8, generator=generator)
        batch = Batch(now, table, slots, BLOCK, BLOCK, HEADS)
        pair = []
        for runner, memory in zip(runners, memories, strict=True):
            if step == 3:
                runner.reset_slot(memory, 2)
            pair.append(attended(runner, memory, pools, batch, queries))
        results.append(pair)
    return results


POLICIES = {
    "steps": {"reuse_steps": 4},
    "layers": {"reuse_layers": 2},
    "both": {"reuse_steps": 3, "reuse_layers": 2},
    "a dense leader": {"reuse_layers": 2, "reuse_steps": 2, "dense_layers": "0"},
    "dense for a while": {"reuse_steps": 64, "dense_below": 42},
    "dense for a step": {"reuse_steps": 64, "budget": "6 + 100 * max(0, min(tokens - 42, 44 - tokens))"},
    "no recent blocks": {"reuse_steps": 16, "recent_blocks": 0},
    "budgets by layer": {"reuse_layers": 2, "budget": "6 + 20 * layer"},
}


def compare(policy, shortcut, tmp_path):
    program = flow(tmp_path, INDEXER, CACHE, **{"budget": 6, **policy})
    for step, (expected, ours) in enumerate(decode(program, [39, 0, 16], shortcut=shortcut)):
        assert ours == expected, step


@pytest.mark.parametrize("name", ["both", "a dense leader"])
def test_rows_attend_what_the_reference_attends(name, tmp_path):
    compare(POLICIES[name], True, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_every_policy_attends_what_the_reference_attends(policy, shortcut, tmp_path):
    compare(policy, shortcut, tmp_path)


def test_a_row_that_reuses_scores_nothing(tmp_path):
    program = flow(tmp_path, INDEXER, CACHE, budget=6, reuse_steps=64)
    results = decode(program, [42], steps=2)
    assert results[1][1][0][0][0] == sorted({*results[0][1][0][0][0], 0, 9, 10})


def test_a_flow_with_state_is_refused(tmp_path):
    body = 'c["acc"] = c.get("acc", 0.0) + Max(GeMM(c["k"], Mean(q, dim="head")), dim="token")\nreturn topK(c["acc"])'
    program = flow(tmp_path, body)
    with pytest.raises(ValueError, match="would miss the steps"):
        CompiledFlow(replace(program, policy=replace(program.policy, reuse_layers=2)))
