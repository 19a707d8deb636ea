"""Bytes of one layer from a flow: they agree with the byte account of models."""

from fractions import Fraction
from pathlib import Path

import pytest

from vortex.bench.account import KVSparsity, Step, entry_bytes
from vortex.bench.layer import layer_bytes
from vortex.bench.models import load_model
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_file

ALGORITHMS = Path(__file__).parents[2] / "algorithms"


def program(name, **policy):
    return trace_file(ALGORITHMS / f"{name}.py", policy, Shape(32, 8, 128, 36)).program


def test_a_layer_reads_what_the_account_says():
    model, context = load_model("Qwen3-8B"), 32769
    read = layer_bytes(program("block_topk", budget=126), 16, context)
    sparse = KVSparsity(tokens=125 * 16 + 1, entries=entry_bytes(16, [128]))
    step = Step(model, batch=16)
    assert read.dense * model.layers == step.reads(context).kv
    assert read.kv * model.layers == step.reads(context, sparse).kv
    # The account spreads entries over all tokens; the current block has none.
    assert Fraction(read.entries * model.layers) == step.reads(context - 1, sparse).entries


def test_the_shape_that_was_measured():
    read = layer_bytes(program("block_topk", budget=126), 16, 32768)
    assert (read.attended, read.blocks) == (126, 2048)
    assert read.step == 16 * 8 * (2047 * 128 * 2 + 126 * 16 * 2 * 128 * 2)


@pytest.mark.parametrize(
    ("name", "per_block"),
    [("quest", 2 * 256), ("quest_int8", 2 * (128 + 2)), ("h2o", 16 * 256 + 2 * 4)],
)
def test_entries_keys_and_state_of_a_block(name, per_block):
    read = layer_bytes(program(name, budget=64, sink_blocks=0), 2, 32 * 1024)
    assert read.entries == 2 * 8 * 2047 * per_block


def test_entries_in_8_bits_are_half():
    made = program("block_topk", budget=64)
    assert layer_bytes(made, 1, 8192).entries == 2 * layer_bytes(made, 1, 8192, entries="fp8").entries


def test_a_row_that_the_budget_covers_reads_no_entries():
    read = layer_bytes(program("block_topk", budget=126), 1, 126 * 16)
    assert (read.entries, read.kv, read.speedup) == (0, read.dense, 1.0)
