"""What a class hands to its methods: attributes, inheritance, and which class of several is meant."""

from tests.dsl.flows import SHAPE, trace_text, traced


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
