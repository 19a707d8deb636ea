"""Where a warning would be unjust: programs near those of diagnostics/ that do what their author means."""

import pytest

from tests.dsl.flows import SHAPE, flow_text, slugs, traced
from vortex.dsl.load import trace_file

MEAN = 'c["mean"] = Mean(c["k"])'
GATE = 'Parameter("gate", "layer kv dim expert=3", init="normal")'


@pytest.mark.parametrize("reuse", ["reuse_layers = 8", "reuse_steps = 4"])
def test_reading_all_keys_is_no_waste_where_the_selection_is_reused(reuse):
    flow = "return topK(Max(Max(GeMM(c['k'], q.T))))"
    assert slugs(flow_text(flow)) == ["reads-all-keys"]
    assert slugs(flow_text(flow, attributes=reuse)) == []


SOFTMAX = {
    "a gate of the query alone": (f'Softmax(GeMM(q, {GATE}), dim="expert")', []),
    "a gate of the query over its heads": (f'Softmax(GeMM(q, {GATE}), dim="head")', []),
    "over blocks": ("Softmax(s)", ["unscaled"]),
    "over the tokens of an entry": ('Softmax(GeMM(c["k"][:, :, :2], q.T), dim="token")', ["unscaled"]),
    "over an axis of the author, with keys in it": (
        'Softmax(GeMM(s, Parameter("mix", "head expert=3", init="ones")), dim="expert")', ["unscaled"]),
    "a table of the query that codes look up": (
        f'Softmax(Sum(Gather(GeMM(q, {GATE}), Cast(c["mean"], "int32"), dim="expert"), dim="dim"), dim="block")',
        ["unscaled"]),
    "the same, scaled": ("Softmax(s * 0.5)", []),
}  # fmt: skip


@pytest.mark.parametrize("name", SOFTMAX)
def test_only_scores_of_keys_ask_for_the_scale(name):
    expression, expected = SOFTMAX[name]
    flow = flow_text(f's = GeMM(c["mean"], q.T)\nc["probe"] = {expression}\nreturn topK(Max(s))', MEAN)
    assert slugs(flow) == expected


STATES = {
    "a mean that is added up": ('0.9 * c["a"] + Mean(s, dim="block")', True),
    "a mean of tokens and blocks": ('c["a"] + Mean(GeMM(c["k"][:, :, :1], q.T), dim=("block", "token", "head"))', True),
    "a largest value that is added up": ('c["a"] + Max(s, dim="block")', True),
    "a mean that wins a maximum": ('Maximum(c["a"], Mean(s, dim="block"))', True),
    "the smallest of the largest": ('Minimum(c["a"], Max(s, dim="block"))', True),
    "the smallest of all steps": ('Minimum(c["a"], Min(s, dim="block"))', False),
    "the largest of all steps": ('Maximum(c["a"], Max(s, dim="block"))', False),
    "a largest value that has a floor": ('c["a"] + Relu(Max(s, dim="block"))', False),
    "a smallest value that has a floor": ('c["a"] + Relu(Min(s, dim="block"))', True),
    "a largest value below the line": ('c["a"] + 1.0 / Max(s, dim="block")', False),
    "a sum": ('c["a"] + Sum(s, dim="block")', False),
    "a mean of the query": ('c["a"] + Mean(q, dim=("head", "dim"))', False),
    "a mean that the next step forgets": ('Mean(s, dim="block")', False),
    "a mean that a choice guards": (
        'Where(Max(Positions().index, dim="block") >= 0, c["a"] + Mean(s, dim="block"), c["a"])', False),
    "a comparison with a mean": ('c["a"] + Where(Mean(s, dim="block") > 1.0, 1.0, 0.0)', False),
    "a state of blocks": ('c["a"] + (s - Mean(s, dim="block"))', False),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_only_a_state_that_cannot_forget_a_reduction_over_nothing_is_told(name):
    value, told = STATES[name]
    flow = flow_text(f's = Max(GeMM(c["mean"], q.T))\nc["a"] = {value}\nreturn topK(s)', MEAN)
    assert ("state-from-nothing" in slugs(flow)) == told


def test_an_attribute_that_only_the_class_body_reads_is_a_warning_and_overriding_it_an_error():
    attributes = 'bits = 32\nmix = Parameter("mix", f"layer kv dim b={bits}", init="normal")'
    flow = flow_text('return topK(Max(GeMM(c["mean"], self.mix)))', MEAN, attributes)
    flow = flow.replace("(q, c)", "(self, q, c)")
    assert slugs(flow) == ["attribute-unread"]
    assert slugs(flow, bits=64) == ["unread-attribute"]


def test_a_parameter_sized_by_a_hyper_parameter_follows_its_override():
    attributes = """
        bits = 32

        def mix(self):
            return Parameter("mix", f"layer kv dim b={self.bits}", init="normal")
    """
    text = flow_text('return topK(Max(GeMM(c["mean"], self.mix())))', MEAN, attributes)
    text = text.replace("(q, c)", "(self, q, c)")
    assert slugs(text) == slugs(text, bits=64) == []
    assert [each.axes[-1].size for each in traced(text, bits=64).weights] == [64]


def test_a_parameter_of_a_helper_that_both_methods_call_is_one_tensor():
    helper = """
        def mix(self):
            return Parameter("mix", "layer kv dim b=4", init="normal")
    """
    text = flow_text(
        "return topK(Max(GeMM(c['low'], (q @ self.mix()).T)))", "c['low'] = Mean(c['k']) @ self.mix()", helper
    )
    text = text.replace("(q, c)", "(self, q, c)").replace("(c)", "(self, c)")
    assert [weight.name for weight in traced(text).weights] == ["mix"]


def test_a_parameter_file_that_lies_beside_the_algorithm_is_no_finding(tmp_path):
    flow = 'return topK(Max(GeMM(c["mean"], Parameter("w", "dim", file="w.safetensors"))))'
    path = tmp_path / "flow.py"
    path.write_text(flow_text(flow.replace("Max(", "(", 1), MEAN), encoding="utf-8")
    assert [each.code for each in trace_file(path, shape=SHAPE).findings] == ["VTX509"]
    (tmp_path / "w.safetensors").touch()
    assert trace_file(path, shape=SHAPE).findings == ()
