"""The bytes that attention of one layer reads in a decode step, from a flow alone. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vortex.codegen.memory import row_elements
from vortex.dsl.ir import Program
from vortex.dsl.policy import Budget, Layers
from vortex.vtensor.reference import Counts

SIZES = {"fp32": 4, "int32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "bool": 1, "int4": 1, "sign": 1}
"""Bytes of a stored element; int4 and sign count bytes already."""


@dataclass(frozen=True)
class LayerBytes:
    """One layer of a step.

    entries  summaries, keys and state that the indexer reads, states twice (they are written as well)
    kv       K and V of the attended blocks; dense: K and V of all tokens
    attended blocks of a row; blocks: of the context
    """

    entries: int
    kv: int
    dense: int
    attended: int
    blocks: int

    @property
    def step(self) -> int:
        return self.entries + self.kv

    @property
    def speedup(self) -> float:
        """The most that sparsity can gain over dense attention, where both are bound by memory."""
        return self.dense / self.step if self.step else 1.0


def layer_bytes(
    program: Program, batch: int, context: int, kv: str = "bf16", entries: str | None = None, layer: int = -1
) -> LayerBytes:
    """A batch of requests of `context` tokens; `kv`, `entries`: storage dtypes. A layer that is dense reads no entries.

    layer: whose budget counts, from the end where negative.
    """
    shape, policy = program.shape, program.policy
    layer %= shape.layers
    counts = Counts.of(context, program)
    place = {"block_size": policy.block_size, "layer": layer, "layers": shape.layers}
    budget = Budget.parse(_asked(program)).evaluate(tokens=context, **place)
    attended = counts.attended(budget)
    below = policy.dense_below != "auto" and context < int(policy.dense_below)
    if below or layer in Layers.parse(policy.dense_layers).numbers(shape.layers):
        attended = counts.blocks
    rows = batch * shape.kv_heads
    token = 2 * shape.head_dim * SIZES[kv]
    dense = rows * context * token
    last = (context - 1) % policy.block_size + 1
    read = rows * ((attended - 1) * policy.block_size + last) * token
    if attended == counts.blocks and not program.states:
        return LayerBytes(0, dense, dense, attended, counts.blocks)
    held = entries or ("bf16" if kv == "fp8" else kv)
    finished = counts.blocks - 1
    indexed = rows * finished * _block_bytes(program, kv, held) + batch * _state_bytes(program, finished)
    return LayerBytes(indexed, read, dense, attended, counts.blocks)


def _asked(program: Program) -> str | int:
    """The size of the attended set: of the selection that makes it, or the flow's budget."""
    result = program.indexer.result
    asked = None
    if result is not None and program.indexer.nodes[result].op in ("topK", "topP", "Threshold"):
        node = program.indexer.nodes[result]
        asked = node.attr("k") if node.op == "topK" else node.attr("max")
    return program.policy.budget if asked is None else asked  # type: ignore[return-value]


def _block_bytes(program: Program, kv: str, held: str) -> int:
    """What the indexer reads of one block of one KV head: entries, and keys or values where it reads those."""
    total = 0
    for entry in program.entries:
        kind = held if entry.storage == "kv" else entry.storage
        total += row_elements(entry.axes, kind) * SIZES[kind]
        if kind in ("int8", "int4"):
            total += 2 * math.prod(axis.size or 1 for axis in entry.axes[:-1])
    nodes = program.indexer.nodes
    waiting = [each.value for each in program.indexer.stores]
    waiting += [] if program.indexer.result is None else [program.indexer.result]
    reached: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in reached:
            reached.add(number)
            waiting += nodes[number].inputs
    whole = {nodes[each].attr("name") for each in reached if nodes[each].op == "Input"} - {"q"}
    return total + len(whole) * program.policy.block_size * program.shape.head_dim * SIZES[kv]


def _state_bytes(program: Program, blocks: int) -> int:
    """Read and written again, of one request."""
    per_head = sum(math.prod(axis.size or blocks for axis in state.axes) * 4 for state in program.states)
    return 2 * per_head * program.shape.kv_heads
