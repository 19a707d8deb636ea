"""The library as files: each explains itself, each has an oracle, the two of the design stand as printed."""

import ast
import math
import re
from fractions import Fraction
from pathlib import Path

import pytest

from tests.oracles import ORACLES
from vortex.dsl.load import trace_file
from vortex.dsl.policy import Budget

FOLDER = Path(__file__).parents[2] / "algorithms"
STEMS = sorted(path.stem for path in FOLDER.glob("*.py"))

BLOCK_TOPK = """
class BlockTopK(vFlow):
    def forward_cache(c):
        c["centroids"] = Mean(c["k"], dim=1)

    def forward_indexer(q, c):
        s = GeMM(c["centroids"], q.T)
        i = topK(Mean(s, dim=2), dim=1)
        return attn(q, c["k"], c["v"], i)
"""

QUEST = """
class Quest(vFlow):
    def forward_cache(c):
        c["max"] = Max(c["k"])
        c["min"] = Min(c["k"])

    def forward_indexer(q, c):
        s = Maximum(q * c["max"], q * c["min"])
        i = topK(Max(Sum(s)))
"""


def source(stem: str) -> str:
    return (FOLDER / f"{stem}.py").read_text()


def test_every_algorithm_has_an_oracle_and_every_oracle_an_algorithm():
    assert sorted(ORACLES) == STEMS


@pytest.mark.parametrize(("stem", "printed"), [("block_topk", BLOCK_TOPK), ("quest", QUEST)])
def test_the_two_files_of_the_design_stand_as_printed(stem, printed):
    assert source(stem).endswith(printed)


@pytest.mark.parametrize("stem", STEMS)
def test_docstring_gives_formula_paper_changes_and_hyper_parameters(stem):
    doc = ast.get_docstring(ast.parse(source(stem)))
    headline, _, body = doc.partition("\n\n")
    assert "\n" not in headline and headline.endswith(".")
    assert re.findall(r"^([A-Z]\w+): ", body, re.M) == ["Formula", "Paper", "Blocks", "Recommended"]
    assert re.search(r"arXiv:\d{4}\.\d{5}|arXiv:\d{4}\.\d{4}|NeurIPS|DeepSeek-AI", body)


@pytest.mark.parametrize("stem", STEMS)
def test_a_file_is_read_in_a_minute_and_needs_vortex_alone(stem):
    tree = ast.parse(source(stem))
    imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports == ["from vortex import *"]
    assert len(source(stem).splitlines()) <= 45


@pytest.mark.parametrize("layers", [2, 30, 61])
def test_pyramid_budgets_fall_evenly_around_their_mean(layers):
    traced = trace_file(FOLDER / "pyramidkv.py")
    budget = Budget.parse(traced.program.policy.budget)
    each = [
        budget.evaluate(tokens=10**6, block_size=16, layer=layer, layers=layers) for layer in range(layers)
    ]
    mean, beta = 64, 20
    last = Fraction(mean, beta)
    first = 2 * mean - last
    exact = [first - (first - last) * layer / (layers - 1) for layer in range(layers)]
    assert each == [math.ceil(value) for value in exact]
    assert sum(exact) / layers == mean
