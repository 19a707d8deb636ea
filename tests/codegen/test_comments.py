"""No byte of an author's names becomes code: comments, and whole builds of hostile flows."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import replace

import pytest
from flows import flow
from hypothesis import given
from hypothesis import strategies as st

from vortex.codegen.build import build
from vortex.codegen.comments import safe_comment

HOSTILE = [
    "a\nimport os",
    "a\r\nimport os",
    "a\rimport os",
    "a\fimport os",
    "a\vimport os",
    'quote"""\nimport os',
    "quote'''\nimport os",
    "\\",
    "\\\nimport os",
    "\\N{LINE FEED}import os",
    "\N{LINE SEPARATOR}import os",
    "\N{PARAGRAPH SEPARATOR}import os",
    "\x85import os",
    "\x1c\x1d\x1eimport os",
    "\x00import os",
    "\ud800\udfff",
    "größe Ω 注意 🦀",
    "*/ import os /*",
    "{{ 7 * 7 }}{% raw %}",
    "# -*- coding: utf-7 -*-",
    "\u202ereversed",
    "x" * 10_000,
    "é" * 10_000,
    "\\" * 10_000,
    "",
]


def check_line(text):
    """The text is one comment to every reader of lines, and tokenises as one."""
    assert text.isascii() and text.isprintable() and "*/" not in text
    source = f"# {text}\nvalue = 1\n"
    assert source.splitlines() == [f"# {text}", "value = 1"]
    kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(source).readline)]
    assert kinds[:2] == [tokenize.COMMENT, tokenize.NL]
    assert [type(each) for each in ast.parse(source).body] == [ast.Assign]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_one_comment(text):
    shown = safe_comment(text)
    check_line(shown)
    assert len(shown) <= 80


@given(text=st.text(st.characters(codec=None, exclude_categories=()), max_size=200), limit=st.integers(8, 90))
def test_any_text_is_one_comment_within_the_limit(text, limit):
    shown = safe_comment(text, limit)
    check_line(shown)
    assert len(shown) <= limit


def test_plain_paths_stand_as_they_are_and_long_ones_keep_their_end():
    assert safe_comment("/home/me/algo.py") == "/home/me/algo.py"
    assert safe_comment("/x" * 100 + "/algo.py").endswith("/x/algo.py")


def test_an_escape_sequence_is_never_cut():
    for limit in range(9, 40):
        assert safe_comment("\N{LINE SEPARATOR}" * 20, limit)[3:].startswith("\\u2028")


BODY = """
c[{state!a}] = c.get({state!a}, 0.0) + Max(GeMM(c[{entry!a}], q.T), dim="head")
return topK(c[{state!a}])
"""


def names(source):
    """Every identifier and string of a source: what could carry an author's text into code."""
    for each in ast.walk(ast.parse(source)):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
        elif isinstance(each, ast.FunctionDef | ast.arg):
            yield each.name if isinstance(each, ast.FunctionDef) else each.arg


@pytest.mark.parametrize("text", [each for each in HOSTILE if 0 < len(each) < 100])
def test_names_of_entries_states_flows_and_files_become_no_code(tmp_path, text):
    def kernels(name):
        entry, state = f"{name}e", f"{name}s"
        program = flow(tmp_path, BODY.format(entry=entry, state=state), f'c[{entry!a}] = Mean(c["k"])')
        return build(replace(program, name=name, file=f"/tmp/{name}/algo.py")).kernels

    hostile, plain = kernels(text), kernels("plain")
    assert [each.name for each in hostile] == [each.name for each in plain]
    for one, other in zip(hostile, plain, strict=True):
        assert list(names(one.source)) == list(names(other.source))
        assert ast.dump(ast.parse(one.source)) == ast.dump(ast.parse(other.source))
        assert one.source.isascii()
