"""What README.md and docs/ show is what happens: Python blocks pass check, console blocks print what they say."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vortex.cli.main import COMMANDS, app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = [
    (page.name, code)
    for page in PAGES
    for code in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    if "from vortex import" in code and page.name != "diagnostics.md"  # which shows mistakes
]
LINKS = [
    (page, link)
    for page in PAGES
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
]
README = (ROOT / "README.md").read_text("utf-8")


def vortex(line):
    words = shlex.split(line)
    assert words[0] == "vortex"
    return CliRunner().invoke(app, words[1:], env={"COLUMNS": "120", "NO_COLOR": "1"}).stdout


def example():
    return next(code for page, code in PYTHON if page == "README.md")


@pytest.mark.parametrize(("page", "code"), PYTHON)
def test_python_examples_pass_check(page, code, tmp_path):
    path = tmp_path / "example.py"
    path.write_text(code, encoding="utf-8")
    assert vortex(f"vortex check {path}") == "1 file: no problems\n"


def test_the_example_of_the_readme_is_the_file_that_make_run_runs():
    assert example().split("\n\n\n")[1] in (ROOT / "algorithms" / "block_topk.py").read_text("utf-8")


def test_the_session_of_the_readme_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = [
        block for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL) if "$ vortex" in block
    ]
    steps = [step for block in blocks for step in re.split(r"^\$ ", block, flags=re.MULTILINE) if step]
    assert [step.split()[1] for step in steps] == ["new", "check", "check"]
    Path("mistake.py").write_text(example().replace("Mean(c", "Meen(c"), encoding="utf-8")
    for step in steps:
        line, printed = step.split("\n", 1)
        assert vortex(line) == printed


def test_the_readme_lists_every_command():
    assert set(re.findall(r"^\| `vortex (\w+)", README, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_links_lead_somewhere(page, link):
    assert (page.parent / link).exists(), link
