"""What the plan says of hyper-parameters: dense layers, reuse, budgets by layer, sizes of a selection's own."""

import re

import pytest

from vortex.cli.policy import show_policy
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_file
from vortex.dsl.policy import Budget

SHAPE = Shape(query_heads=8, kv_heads=2, head_dim=64, layers=6)


def shown(name, **settings):
    traced = trace_file(name, settings, SHAPE)
    assert traced.program is not None, traced.errors
    return show_policy(traced.program)


def layers(text):
    return re.findall(r"^    (layers? \S+: .*)$", text, re.MULTILINE)


def test_layers_that_are_alike_are_one_line():
    assert layers(shown("quest")) == ["layers 0-5: 32, 32, 256"]


def test_a_budget_by_layer_is_worked_out_as_the_language_does():
    text = shown("pyramidkv", dense_layers="0, -1")
    budget = Budget.parse(trace_file("pyramidkv").program.policy.budget)
    expected = ["layer 0: dense"]
    for layer in range(1, 5):
        sizes = [min(blocks, budget.evaluate(tokens=16 * blocks, block_size=16, layer=layer, layers=6))
                 for blocks in (64, 256, 2048)]  # fmt: skip
        expected.append(f"layer {layer}: {', '.join(map(str, sizes))}")
    assert layers(text) == [*expected, "layer 5: dense"]


def test_reserved_blocks_are_attended_whatever_the_budget_is():
    assert layers(shown("quest", budget=1, sink_blocks=70)) == ["layers 0-5: 64, 72, 72"]


def test_requests_below_dense_below_attend_every_block():
    assert layers(shown("quest", dense_below=1025)) == ["layers 0-5: 64, 32, 256"]
    assert layers(shown("quest", dense_below=1024)) == ["layers 0-5: 32, 32, 256"]
    assert layers(shown("quest", dense_below="auto")) == ["layers 0-5: 32, 32, 256"]


def test_layers_that_take_over_a_selection_name_the_one_that_made_it():
    text = shown("tidal_decode", dense_layers="1", reuse_layers=3, reuse_steps=4)
    assert layers(text) == [
        "layer 0: 32, 32, 256", "layer 1: dense", "layer 2: what layer 0 selected", "layer 3: 32, 32, 256",
        "layers 4-5: what layer 3 selected",
    ]  # fmt: skip
    assert "reuse_steps 4, reuse_layers 3" in text and "dense_layers 1," in text


def test_a_selection_with_a_size_of_its_own_is_told():
    assert "  topK (line 24): 128 blocks in place of the budget\n" in shown("coarse_to_fine")
    assert "in place of" not in shown("quest")


@pytest.mark.parametrize(
    "setting", ["share_heads=sum", "dense_below=4096", "sink_blocks=3", "recent_blocks=5"]
)
def test_every_hyper_parameter_is_shown_as_it_is_set(vortex, setting):
    name, value = setting.split("=")
    plan = vortex("compile", "quest", "--emit", "plan", "--set", setting).stdout
    assert plan.startswith("policy of Quest for 32 layers\n") and "\nplan of Quest for bf16" in plan
    assert f"{name} {value}" in plan
