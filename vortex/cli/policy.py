"""The hyper-parameters of a traced flow as text: which layers select, how often, and how many blocks they attend."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from vortex.dsl.ir import Program
from vortex.dsl.policy import Budget, Layers
from vortex.vtensor.reference import Counts
from vortex.vtensor.reuse import leader

BLOCKS = (64, 256, 2048)
"""Blocks of a request for which sizes are worked out."""


def show_policy(program: Program) -> str:
    """A line a hyper-parameter and, below the budget, one for each run of layers that are alike."""
    policy = program.policy
    lines = [
        f"policy of {program.name} for {program.shape.layers} layers", "",
        f"  block_size {policy.block_size}, sink_blocks {policy.sink_blocks}, recent_blocks {policy.recent_blocks}",
        f"  dense_layers {policy.dense_layers or 'none'}, dense_below {policy.dense_below}",
        f"  reuse_steps {policy.reuse_steps}, reuse_layers {policy.reuse_layers}, share_heads {policy.share_heads}",
        f"  budget {policy.budget}: of {BLOCKS[0]}, {BLOCKS[1]} and {BLOCKS[2]} blocks a layer attends at most",
    ]  # fmt: skip
    lines += [f"    {line}" for line in _layers(program)]
    return "\n".join([*lines, *_sizes(program)]) + "\n"


def _layers(program: Program) -> Iterator[str]:
    """What each run of layers attends, and whose selection."""
    layers = program.shape.layers
    dense = Layers.parse(program.policy.dense_layers).numbers(layers)
    for said, run in groupby(range(layers), lambda layer: _layer(program, layer, layer in dense)):
        first, *rest = run
        name = f"layers {first}-{rest[-1]}" if rest else f"layer {first}"
        yield f"{name}: {said}"


def _layer(program: Program, layer: int, dense: bool) -> str:
    if dense:
        return "dense"
    policy, source = program.policy, leader(program.policy, layer)
    if source != layer:
        return f"what layer {source} selected"
    budget = Budget.parse(policy.budget)
    where = {"block_size": policy.block_size, "layer": layer, "layers": program.shape.layers}
    # "auto" is measured where a step is made.
    below = policy.dense_below if isinstance(policy.dense_below, int) else 0
    sizes = []
    for blocks in BLOCKS:
        tokens = blocks * policy.block_size
        attended = Counts.of(tokens, program).attended(budget.evaluate(tokens=tokens, **where))
        sizes.append(str(blocks if tokens < below else attended))
    return ", ".join(sizes)


def _sizes(program: Program) -> Iterator[str]:
    """Selections with a size of their own, which goes before the budget."""
    for node in program.indexer.nodes:
        size = node.attr("k") if node.op == "topK" else node.attr("max")
        if size is not None and node.attr("dim", "block") == "block":
            line = f" (line {node.location.line})" if node.location is not None else ""
            yield f"  {node.op}{line}: {size} blocks in place of the budget"
