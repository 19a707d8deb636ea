"""What tracing makes of a file: methods however they are written, states, hyper-parameters, results."""

import pytest

from tests.dsl.flows import SHAPE, flow_text, slugs, trace_text, traced
from vortex.dsl.axes import BLOCK, Axis
from vortex.dsl.ir import State
from vortex.dsl.load import trace_file
from vortex.dsl.text import print_program

BLOCK_TOP_K = """
from vortex import *

class BlockTopK(vFlow):
    def forward_cache(c):
        c["centroids"] = Mean(c["k"], dim=1)

    def forward_indexer(q, c):
        s = GeMM(c["centroids"], q.T)
        i = topK(Mean(s, dim=2), dim=1)
        return attn(q, c["k"], c["v"], i)
"""

QUEST = """
from vortex import *

class Quest(vFlow):
    def forward_cache(c):
        c["max"] = Max(c["k"])
        c["min"] = Min(c["k"])

    def forward_indexer(q, c):
        s = Maximum(q * c["max"], q * c["min"])
        i = topK(Max(Sum(s)))
"""


def test_block_top_k_as_it_stands():
    program = traced(BLOCK_TOP_K)
    assert [node.op for node in program.indexer.nodes if node.op != "Input"] == [
        "Entry", "Transpose", "GeMM", "Mean", "topK"]  # fmt: skip
    assert program.indexer.nodes[program.indexer.result].op == "topK"
    assert [(entry.name, entry.storage) for entry in program.entries] == [("centroids", "kv")]
    assert trace_text(BLOCK_TOP_K).findings == ()


def test_quest_as_it_stands_attends_the_one_set_without_a_return():
    program = traced(QUEST)
    assert program.indexer.nodes[program.indexer.result].op == "topK"
    assert [entry.axes for entry in program.entries] == [(Axis("dim", 8),)] * 2
    assert trace_text(QUEST).findings == ()


@pytest.mark.parametrize("text", [BLOCK_TOP_K, QUEST])
def test_named_imports_trace_to_the_same_program(text):
    named = text.replace("import *", "import GeMM, Max, Maximum, Mean, Min, Sum, attn, topK, vFlow")
    assert print_program(traced(named)) == print_program(traced(text))


@pytest.mark.parametrize("text", [BLOCK_TOP_K, QUEST])
def test_a_module_import_traces_to_the_same_operators(text):
    for name in ("GeMM", "Maximum", "Max(", "Mean(", "Min(", "Sum(", "attn(", "topK(", "vFlow"):
        text = text.replace(name, f"vx.{name}") if name != "Max(" else text.replace(" Max(", " vx.Max(").replace(
            "(Max(", "(vx.Max(")  # fmt: skip
    program = traced(text.replace("from vortex import *", "import vortex as vx"))
    assert program.indexer.result is not None


FORMS = {
    "bare": ("", "", "c"),
    "self": ("", "self, ", "c"),
    "static": ("@staticmethod\n    ", "", "c"),
    "class": ("@classmethod\n    ", "cls, ", "c"),
    "other names": ("", "", "cache"),
}


@pytest.mark.parametrize("form", FORMS)
def test_methods_may_be_written_in_any_form(form):
    decorator, first, c = FORMS[form]
    program = traced(f"""
from vortex import *

class Flow(vFlow):
    {decorator}def forward_cache({first}{c}):
        {c}["m"] = Mean({c}["k"])

    {decorator}def forward_indexer({first}q, {c}):
        return topK(Max(GeMM({c}["m"], q.T)))
""")
    assert [node.op for node in program.indexer.nodes][-3:] == ["GeMM", "Max", "topK"]


def test_attributes_through_self_the_class_and_a_property():
    program = traced("""
from vortex import *

class Flow(vFlow):
    gain = 3.0
    shift = 0.25

    @property
    def doubled(self):
        return self.gain * 2

    def forward_indexer(self, q, c):
        s = Positions().index * self.doubled + Flow.shift
        return topK(s * self.scale)
""")
    constants = [node.attr("value") for node in program.indexer.nodes if node.op == "Const"]
    assert constants == [6.0, 0.25, SHAPE.head_dim**-0.5]


FAMILY = """
from vortex import *

class Base(vFlow):
    top = 3

    def forward_cache(c):
        c["m"] = Mean(c["k"])

    def score(self, q, c):
        return Max(GeMM(c["m"], q.T))

    def forward_indexer(self, q, c):
        return topK(self.score(q, c), k=self.top)
"""
CHILD = """
class Child(Base):
    top = 5

    def score(self, q, c):
        return Mean(GeMM(c["m"], q.T))
"""
PARTS = """
class Parts(vFlow):
    def forward_cache(c):
        c["m"] = Mean(c["k"])
"""


def test_inheritance_brings_methods_and_attributes():
    program = traced(FAMILY + CHILD)
    assert "Mean" in [node.op for node in program.indexer.nodes]
    assert program.indexer.nodes[-1].attr("k") == 5


def test_of_several_classes_the_one_that_no_other_derives_from_is_meant():
    assert traced(FAMILY + CHILD).name == "Child"
    assert traced(FAMILY + CHILD + PARTS).name == "Child"  # Parts has no indexer
    finding = trace_text(FAMILY + CHILD + PARTS + CHILD.replace("Child", "Other")).findings[0]
    assert finding.message == "This file has several flows: Child, Other."
    assert finding.remedy == "Choose one: `flow.py:Child`."


def test_a_base_class_can_still_be_named():
    from vortex.dsl.load import trace_source
    from vortex.dsl.source import Source

    program = trace_source(Source("flow.py", FAMILY + CHILD), "Base", shape=SHAPE).program
    assert program is not None and program.name == "Base"


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


def test_an_override_reaches_a_base_class_read_by_its_name():
    text = """
from vortex import *

class Base(vFlow):
    top = 3

    def forward_indexer(q, c):
        return topK(Positions().index, k=Base.top)
"""
    assert traced(text, top="7").indexer.nodes[-1].attr("k") == 7
    assert traced(text).indexer.nodes[-1].attr("k") == 3


def test_python_runs_while_tracing():
    program = traced(flow_text(
        """
        total = 0.0
        for j in range(c["k"].shape[2]):
            total = total + Max(c[f"part{j}"] * q, dim=("head", "dim"))
        return topK(total)
        """,
        """
        for j in range(c["k"].shape[1]):
            c[f"part{j}"] = c["k"][:, j] if j % 2 else helper(c["k"], j)
        """,
    ) + "\ndef helper(x, j):\n    return Max(x[:, j:], dim=1)\n")  # fmt: skip
    assert [entry.name for entry in program.entries] == ["part0", "part1", "part2", "part3"]


def test_numpy_numbers_are_numbers():
    program = traced(flow_text("return topK(Positions().index * np.float32(0.5) + np.int64(3), k=np.int64(4))")
                     .replace("class", "import numpy as np\n\nclass"))  # fmt: skip
    assert [node.attr("value") for node in program.indexer.nodes if node.op == "Const"] == [0.5, 3]
    assert program.indexer.nodes[-1].attr("k") == 4


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


def test_a_flow_may_import_a_helper_beside_its_file(tmp_path):
    (tmp_path / "beside_the_flow.py").write_text(
        "from vortex import Max\n\ndef best(x):\n    return Max(x)\n"
    )
    path = tmp_path / "flow.py"
    path.write_text(flow_text("return topK(best(Max(c['k'])))").replace(
        "class", "from beside_the_flow import best\n\nclass"))  # fmt: skip
    program = trace_file(path).program
    assert program is not None
    # Locations stay in the algorithm file: the line that called the helper.
    assert {node.location.line for node in program.indexer.nodes if node.location} == {8}
