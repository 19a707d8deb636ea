"""docs/python.md: its code runs in order and prints what it says, with a tiny model and with the demo model."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import vortex.engines.transformers as engines
from tests.tiny import word_model

TEXT = (Path(__file__).parents[2] / "docs" / "python.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SHOWN = re.search(r"```text\n(.*?)```", TEXT, re.DOTALL)[1]


def run_page(folder, monkeypatch):
    """The names that the page's code leaves behind; its flow lies in the file that the page names as well."""
    monkeypatch.chdir(folder)
    names = {"__name__": "page"}
    for block in BLOCKS:
        if "(vFlow)" in block:
            Path("peaks.py").write_text(block, encoding="utf-8")
        exec(compile(block, "python.md", "exec"), names)
    return names


def form(text):
    """A text without its figures."""
    return re.sub(r"[\d.,]+", "#", text)


def test_the_code_runs_in_order(tmp_path, monkeypatch, capsys):
    model = engines.load(word_model(tmp_path / "model", context=4096))
    monkeypatch.setattr(engines, "load", lambda: model)
    names = run_page(tmp_path, monkeypatch)
    *_, quest, peaks, read = capsys.readouterr().out.splitlines()
    assert form(f"{quest}\n{peaks}\n") == form(SHOWN)
    assert read.endswith(f"{names['out'].counters.kv_share:.1%}") and names["out"].counters.kv_share < 0.5
    assert names["again"].runner.program.policy.budget == "24"


@pytest.mark.slow
def test_the_demo_model_gives_figures_like_those(tmp_path, monkeypatch, capsys):
    run_page(tmp_path, monkeypatch)
    *_, quest, peaks, _ = capsys.readouterr().out.splitlines()
    ours, theirs = (
        re.findall(r"([\d.]+)%, agreement ([\d.]+)%", text) for text in (f"{quest}\n{peaks}", SHOWN)
    )
    for mine, shown in zip(ours, theirs, strict=True):
        # The passage is Python's own documentation, whose words change with its version.
        assert float(mine[0]) == pytest.approx(float(shown[0]), abs=5)


def test_every_counter_is_in_the_table():
    table = TEXT.split("| field | |")[1]
    named = set(
        re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines() if "|" in row))
    )
    assert named == {each.name for each in fields(engines.Counters)}
