"""docs/language.md says nothing that is not so: its files, shapes, mistakes and tables are tried."""

import re
from pathlib import Path

import pytest

from docs.generate import language_page
from vortex.dsl.catalogue import CATALOGUE
from vortex.dsl.flow import POLICY, vFlow
from vortex.dsl.load import trace_source
from vortex.dsl.registry import OPERATORS
from vortex.dsl.source import Source

PAGE = Path(__file__).parents[2] / "docs" / "language.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
FILES = [code for code in BLOCKS if "vFlow" in code]
SHAPES = [line for code in BLOCKS if "vFlow" not in code for line in code.splitlines() if line.strip()]
MISTAKES = re.findall(r"^\| `(.*?)` \| `(.*?)` \| (VTX\d+) ([\w-]+) \|$", TEXT, re.MULTILINE)
NAMES = {kind.code: slug for slug, kind in CATALOGUE.items()}

HEAD = """from vortex import *

class Example(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(self, q, c):
"""


def trace(text):
    return trace_source(Source("example.py", text))


@pytest.mark.parametrize("code", FILES, ids=lambda code: re.search(r"class (\w+)", code).group(1))
def test_a_complete_file_has_no_finding_but_a_lint_it_means(code):
    findings = trace(code).findings
    assert [NAMES[each.code] for each in findings] in ([], ["reads-all-keys"])


def test_only_the_file_about_few_channels_may_read_all_of_k():
    assert [code for code in FILES if trace(code).findings] == []


@pytest.mark.parametrize("line", SHAPES)
def test_a_shape_is_what_it_says(line):
    expression, shape = (each.strip() for each in line.split("  # ") if each.strip())
    names = {"k": 'c["k"]', "v": 'c["v"]', "m": 'c["mean"]'}
    body = "".join(f"        {name} = {value}\n" for name, value in names.items())
    program = trace(f"{HEAD}{body}        c['probe'] = {expression}\n        return First(1)\n").program
    assert program is not None
    assert str(program.indexer.nodes[program.indexer.stores[0].value].type) == shape


@pytest.mark.parametrize(("wrong", "right", "code", "slug"), MISTAKES)
def test_a_common_mistake_gives_its_finding_and_the_right_way_none(wrong, right, code, slug):
    def findings(statement):
        body = "".join(f"        {part}\n" for part in ["s = GeMM(c['mean'], q.T)", *statement.split("; ")])
        return [NAMES[each.code] for each in trace(HEAD + body).findings if each.code != "VTX502"]

    assert CATALOGUE[slug].code == code
    assert findings(wrong.replace("\\|", "|")) == [slug]
    assert findings(right.replace("\\|", "|")) == []


def test_the_mistakes_are_many():
    assert len(MISTAKES) >= 20


def test_the_operator_tables_are_up_to_date_and_complete():
    assert language_page(TEXT) == TEXT
    for name, op in OPERATORS.items():
        assert not op.public or f"`{name}(" in TEXT


def test_every_hyper_parameter_is_listed_with_its_default():
    for name in POLICY:
        assert f"`{name}`" in TEXT
    assert f'`"{vFlow.budget}"`' in TEXT and f"`{vFlow.block_size}`" in TEXT


def test_links_within_the_page_lead_somewhere():
    heads = {
        re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-")
        for head in re.findall(r"^#+ (.+)$", TEXT, re.M)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) <= heads
