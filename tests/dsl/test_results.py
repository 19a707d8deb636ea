"""What an indexer attends: every way to say it, and thresholds that are tensors."""

import pytest

from tests.dsl.flows import flow_text, slugs, traced
from vortex.dsl.axes import BLOCK
from vortex.dsl.ir import State


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("i = topK(s)", "topK"),
        ("return topK(s)", "topK"),
        ('return attn(q, c["k"], c["v"], topK(s))', "topK"),
        ('attn(q, c["k"], c["v"], topK(s))', "topK"),
        ("return s > 0", "Greater"),
        ("return Positions().from_end < 4", "Less"),
        ("near = topK(s)\ni = topK(Gather(s, near), k=2)", "topK"),
        ("return Union(First(1), topK(s), s > 3)", "Union"),
        ("return topP(Softmax(s), 0.9)", "topP"),
        ("return Threshold(s, 0.5, max=3)", "Threshold"),
    ],
)
def test_every_way_to_say_what_is_attended(ending, expected):
    program = traced(
        flow_text('s = Max(c["m"] * q, dim=("head", "dim"))\n' + ending, 'c["m"] = Mean(c["k"])')
    )
    assert program.indexer.nodes[program.indexer.result].op == expected


@pytest.mark.parametrize(
    "call", ["Threshold(s, t)", "Threshold(s, t=t)", "Threshold(x=s, t=t)", "Threshold(s, t=t, max=8)"]
)
def test_a_threshold_may_be_a_tensor(call):
    for t in (
        'Mean(s, dim="block")',
        "Mean(s, dim='block') + Positions().index",
        'Parameter("t", "kv", init="zeros")',
    ):
        program = traced(flow_text(f"s = Max(Max(c['k']))\nt = {t}\nreturn {call}"))
        select = program.indexer.nodes[program.indexer.result]
        assert (select.op, select.attr("t")) == ("Threshold", 0.0)
        assert program.indexer.nodes[select.inputs[0]].op == "Sub"


def test_a_threshold_may_be_a_state_of_any_shape():
    program = traced(
        flow_text("""
        s = Max(Max(c["k"]))
        i = Threshold(s, t=c.get("level", 0.0))
        c["level"] = 0.5 * c.get("level", 0.0) + Where(i, s, 0.0)
        return i
    """)
    )
    assert program.states == (State("level", (BLOCK,), "fp32", 0.0),)


@pytest.mark.parametrize("t", ["q", "Max(Gather(c['k'], First(2)), dim=('token', 'dim'))", "'high'"])
def test_a_threshold_with_other_axes_than_the_scores_is_refused(t):
    expected = {"q": "leftover-axis", "'high'": "bad-number"}.get(t, "restricted-block")
    assert slugs(flow_text(f"return Threshold(Max(Max(c['k'])), {t})")) == [expected]
