"""Every mistake has its message: the code, the line, the caret, the remedy."""

import re
from string import Formatter

import pytest

from docs.generate import ROOT, diagnostics_page
from tests.dsl.examples import EXAMPLES, PROCESS
from vortex.dsl.catalogue import CATALOGUE
from vortex.dsl.diagnostics import nearest, render
from vortex.dsl.load import trace_file


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.path.stem)
def test_an_example_gives_its_finding_alone_at_the_marked_text(example):
    findings = example.findings
    assert [finding.code for finding in findings] == [CATALOGUE[example.slug].code]
    (finding,) = findings
    assert finding.line == example.line
    if finding.line:
        assert example.found(finding) == example.underlined


def test_every_entry_of_the_catalogue_has_an_example():
    shown = {example.slug for example in (*EXAMPLES, *PROCESS)}
    assert shown == set(CATALOGUE)


def test_codes_are_unique_and_grouped():
    codes = [kind.code for kind in CATALOGUE.values()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"VTX[0-5]\d\d", code) for code in codes)


def test_every_entry_says_what_is_wrong_and_what_to_write():
    for slug, kind in CATALOGUE.items():
        assert kind.remedy.strip(), slug
        assert kind.message.strip().endswith((".", "?", "}")), slug
        assert all(name is None or name.isidentifier() or "." in name
                   for _, name, _, _ in Formatter().parse(kind.message + kind.remedy)), slug  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.path.stem)
def test_no_message_shows_an_internal_name(example):
    (finding,) = example.findings
    text = finding.message + finding.remedy
    assert not re.search(r"%-?\d|object at 0x|<class|\{|\}", text), text
    assert "\n" not in text


def test_five_mistakes_in_both_methods_come_in_one_run(tmp_path):
    path = tmp_path / "five.py"
    path.write_text("""from vortex import *

class Five(vFlow):
    block_size = 12

    def forward_cache(c):
        c["mean"] = c["k"].mean(1)
        c["v"] = Max(c["k"])
        c["low"] = Min(c["k"], axis=1)

    def forward_indexer(q, c):
        s = GeMM(c["maen"], q.T)
        t = topk(GeMM(c["low"], q.T))
        return Max(GeMM(c["v"], q), dim=5)
""")
    traced = trace_file(path)
    assert traced.program is None
    names = {kind.code: slug for slug, kind in CATALOGUE.items()}
    assert [(names[each.code], each.line) for each in traced.findings] == [
        ("block-size", 4),
        ("torch-idiom", 7),
        ("write-input", 8),
        ("arguments", 9),
        ("unknown-entry", 12),
        ("unknown-operator", 13),
        ("contracted-size", 14),
    ]


def test_columns_count_characters_where_a_line_has_others_than_ascii(tmp_path):
    path = tmp_path / "wide.py"
    path.write_text(
        "from vortex import *\n\nclass Wide(vFlow):\n    def forward_indexer(q, c):\n"
        '        é = "ключ"; return topK(q.mean())\n', encoding="utf-8")  # fmt: skip
    (finding,) = trace_file(path).findings
    assert (finding.column, finding.end_column) == (33, 39)
    assert render(finding).splitlines()[2] == "    " + " " * 32 + "^" * 6


def test_a_name_with_a_newline_stays_on_one_line(tmp_path):
    path = tmp_path / "newline.py"
    path.write_text("from vortex import *\n\nclass N(vFlow):\n    def forward_cache(c):\n"
        '        c["a\\nb"] = 0.5\n\n    def forward_indexer(q, c):\n        return First(2)\n')  # fmt: skip
    (finding,) = trace_file(path).findings
    assert "\n" not in finding.message and "a\\nb" in finding.message


def test_a_caret_points_into_a_budget(tmp_path):
    path = tmp_path / "budget.py"
    path.write_text("from vortex import *\n\nclass N(vFlow):\n    budget = 'max(32, 5 * block)'\n\n"
                    "    def forward_indexer(q, c):\n        return First(2)\n")  # fmt: skip
    (finding,) = trace_file(path).findings
    line = path.read_text().splitlines()[finding.line - 1]
    assert line[finding.column - 1 : finding.end_column - 1] == "block"


def test_a_hint_that_asks_ends_with_its_question_mark(tmp_path):
    path = tmp_path / "budget.py"
    path.write_text("from vortex import *\n\nclass N(vFlow):\n    budget = '5 * block'\n\n"
                    "    def forward_indexer(q, c):\n        return First(2)\n")  # fmt: skip
    (finding,) = trace_file(path).findings
    assert finding.remedy == "Did you mean blocks?"


def test_a_wrong_override_does_not_blame_the_file(tmp_path):
    path = tmp_path / "fine.py"
    path.write_text("from vortex import *\n\nclass N(vFlow):\n    budget = 64\n\n"
                    "    def forward_indexer(q, c):\n        return First(2)\n")  # fmt: skip
    (finding,) = trace_file(path, {"budget": "5 * block"}).findings
    assert finding.line == 0 and "5 * block" in finding.message


def test_json_of_a_finding_has_what_agents_read(tmp_path):
    finding = EXAMPLES[0].findings[0].json()
    assert {"code", "severity", "file", "line", "column", "message", "remedy"} <= set(finding)


def test_the_nearest_name_ignores_case_and_stays_silent_far_off():
    assert nearest("TOPK", ["topK", "topP"]) == " Did you mean topK?"
    assert nearest("zzz", ["topK", "topP"]) == ""


def test_the_page_of_diagnostics_is_up_to_date():
    assert (ROOT / "docs" / "diagnostics.md").read_text(encoding="utf-8") == diagnostics_page()


def test_a_mistake_in_a_long_loop_does_not_fill_the_report(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text("from vortex import *\n\nclass Loop(vFlow):\n    def forward_indexer(q, c):\n"
                    "        for j in range(10**3):\n            c[f'x{j}']\n")  # fmt: skip
    assert 100 <= len(trace_file(path).findings) <= 101
