"""Hyper-parameters: overrides, the policy, and attributes that methods read."""

import pytest

from tests.dsl.flows import flow_text, slugs, trace_text, traced

OVERRIDES = {
    ("top", "8"): 8, ("top", 8): 8, ("p", "0.5"): 0.5, ("p", "1"): 1.0, ("flag", "false"): False,
    ("flag", "True"): True,
    ("kind", "b"): "b", ("kind", "3"): "3", ("channels", "1,2"): (1, 2), ("channels", "[3]"): [3],
}  # fmt: skip


OWN = """
from vortex import *

class Flow(vFlow):
    top = 4
    p = 0.9
    flag = True
    kind = "a"
    channels = (0,)

    def forward_indexer(self, q, c):
        kept.append((self.top, self.p, self.flag, self.kind, self.channels))
        return First(self.top)
"""


@pytest.mark.parametrize("pair", OVERRIDES, ids=str)
def test_overrides_are_converted_to_the_kind_of_the_attribute(pair):
    import vortex

    vortex.kept = []  # the flow reports what it read through the module that it imports
    try:
        trace = trace_text(OWN.replace("class", "from vortex import kept\n\nclass"), **dict([pair]))
        assert not trace.errors, trace.errors
        key, _ = pair
        (read,) = set(map(str, vortex.kept))
        names = ("top", "p", "flag", "kind", "channels")
        assert read.startswith("(") and vortex.kept[0][names.index(key)] == OVERRIDES[pair]
        assert type(vortex.kept[0][names.index(key)]) is type(OVERRIDES[pair])
    finally:
        del vortex.kept


@pytest.mark.parametrize(
    ("key", "value"),
    [("top", "many"), ("top", "2.5"), ("top", "true"), ("p", "high"), ("flag", "2"), ("channels", "4"), ("top", 2.5),
     ("block_size", "12"), ("block_size", "big"), ("sink_blocks", "-1"), ("share_heads", "all"), ("share_heads", "0"),
     ("reuse_steps", "0"), ("dense_below", "soon"), ("recent_blocks", "1.5")],
)  # fmt: skip
def test_an_override_of_another_kind_is_refused(key, value):
    text = OWN.replace("kept.append", "str")
    assert slugs(text, **{key: value}) in (["bad-value"], ["block-size"])


def test_policy_overrides_arrive():
    policy = traced(flow_text(), block_size="8", budget="25% * blocks", sink_blocks="2", share_heads="mean",
                    dense_layers="0,2-", dense_below="auto").policy  # fmt: skip
    assert (policy.block_size, policy.budget, policy.sink_blocks) == (8, "25% * blocks", 2)
    assert (policy.share_heads, policy.dense_layers, policy.dense_below) == ("mean", "0,2-", "auto")
    assert traced(flow_text(), budget="64", share_heads="false").policy.budget == "64"


def test_layers_are_checked_against_a_known_model_only():
    text = flow_text(attributes='dense_layers = "0-5"')
    assert slugs(text) == ["layers"]  # SHAPE has 4 layers
    from vortex.dsl.load import trace_source
    from vortex.dsl.source import Source

    assert trace_source(Source("flow.py", text)).program is not None


def test_an_attribute_read_in_a_branch_not_taken_counts_as_read():
    text = flow_text("return First(self.a if self.mode else self.b)", attributes="a = 1\nb = 2\nmode = True")
    assert slugs(text.replace("(q, c)", "(self, q, c)")) == []


def test_tracing_leaves_the_class_as_it_was():
    import types

    from vortex.dsl.load import trace_flow

    module = types.ModuleType("flow_under_test")
    exec(compile(flow_text(), "<flow>", "exec"), module.__dict__)
    before = dict(vars(module.Flow))
    assert trace_flow(module.Flow, {"budget": 3}).program is not None
    assert dict(vars(module.Flow)) == before
