"""States: the fixed point of their shapes, their order of reading, and how entries are stored."""

import pytest

from tests.dsl.flows import flow_text, slugs, traced
from vortex.dsl.axes import BLOCK, Axis
from vortex.dsl.ir import State

STATES = {
    "over blocks": ('c["s"] = c.get("s", 0.0) + Max(c["k"], dim=("token", "dim"))', State("s", (BLOCK,), "fp32", 0.0)),
    "plain read": ('c["s"] = c["s"] + Max(c["k"], dim=("token", "dim"))', State("s", (BLOCK,), "fp32", 0.0)),
    "in place": ('c["s"] += Max(q, dim="dim")', State("s", (Axis("head", 4),), "fp32", 0.0)),
    "boolean": ('c["s"] = c.get("s", False) | First(3)', State("s", (BLOCK,), "bool", 0.0)),
    "boolean, true at first": ('c["s"] = c.get("s", True) & First(3)', State("s", (BLOCK,), "bool", True)),
    "a number": ('c["s"] = c.get("s", 5.0) * 0.5 + Max(Max(q))', State("s", (), "fp32", 5.0)),
    "a counter": ('c["s"] = c.get("s", 0.0) + 1', State("s", (), "fp32", 0.0)),
    "a flag": ('c["s"] = ~c.get("s", True)', State("s", (), "bool", True)),
    "a number beside one of blocks": ('t = c.get("t", 0.0)\nc["t"] = t + 1\nc["s"] = c.get("s", 0.0) + First(2) * t',
                                      State("s", (BLOCK,), "fp32", 0.0)),
    "a number used as blocks": ('c["s"] = c.get("s", 0.0) + 1\nreturn topK(c["s"])', None),
    "integers are kept as fp32": ('c["s"] = c.get("s", 0) + Positions().index', State("s", (BLOCK,), "fp32", 0)),
    "a default below zero": ('c["s"] = Maximum(c.get("s", -1.0), Max(q, dim="head"))',
                             State("s", (Axis("dim", 8),), "fp32", -1.0)),
    "through a selection": ('i = topK(c["s"])\nnear = Gather(c["k"], i)\n'
                            'c["s"] = c["s"] + Scatter(Max(near, dim=("token", "dim")))',
                            State("s", (BLOCK,), "fp32", 0.0)),
    "written only": ('c["s"] = Max(q, dim="head")', State("s", (Axis("dim", 8),), "fp32", 0.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_a_state_has_the_shape_of_its_fixed_point(name):
    body, expected = STATES[name]
    found = slugs(flow_text(body + "\nreturn First(2)"))
    if expected is None:
        assert found == ["state-shape"]
        return
    program = traced(flow_text(body + ("\nreturn i" if "i = " in body else "\nreturn First(2)")))
    assert expected in program.states


def test_two_states_that_depend_on_each_other():
    program = traced(flow_text('''
        a = c.get("a", 0.0) + c.get("b", 0.0)
        c["a"] = a + Positions().index
        c["b"] = c["a"] * 0.5
        return topK(c["b"])
    '''))  # fmt: skip
    assert [(state.name, state.axes) for state in program.states] == [("a", (BLOCK,)), ("b", (BLOCK,))]


def test_reading_after_an_assignment_gives_the_new_value():
    program = traced(
        flow_text('c["s"] = Max(q, dim="head")\nc["s"] = c["s"] * 2\nreturn topK(Positions().index)')
    )
    assert len(program.indexer.stores) == 1
    assert program.indexer.nodes[program.indexer.stores[0].value].op == "Mul"
    assert all(node.op != "State" for node in program.indexer.nodes)


@pytest.mark.parametrize(
    ("value", "storage"),
    [('topK(c["k"], dim="dim", k=2)', "bool"),
     ('Max(c["k"])', "kv"), ('Cast(c["k"], "sign")', "sign"), ('Cast(Max(c["k"]), "int8")', "int8"),
     ('Max(c["k"]) > 0', "bool"), ('ArgMax(c["k"], dim="dim")', "int32"), ('Cast(Max(c["k"]), "fp32")', "kv"),
     ('Cast(Max(c["k"]), "bf16") * 1', "kv")],
)  # fmt: skip
def test_an_entry_is_stored_as_its_cast_says(value, storage):
    assert traced(flow_text(cache=f'c["x"] = {value}')).entries[0].storage == storage
