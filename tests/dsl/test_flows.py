"""What tracing makes of a file: the two first algorithms, methods however they are written, Python while tracing."""

import pytest

from tests.dsl.flows import flow_text, trace_text, traced
from vortex.dsl.axes import Axis
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
