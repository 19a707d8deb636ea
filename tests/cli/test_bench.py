"""`vortex bench` without a GPU: the byte account, its files, and what is refused."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from vortex.bench.sweep import Point, Sweep, flat, points
from vortex.cli.bench import bench_command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "bench.md").read_text("utf-8")
EXAMPLES = re.findall(r"```console\n\$ vortex bench ([^\n]*)\n([^`].+?)```", PAGE, re.DOTALL)
TOPK = str(ROOT / "algorithms" / "block_topk.py")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def run(arguments):
    app = typer.Typer()
    app.command()(bench_command)
    return CliRunner().invoke(app, shlex.split(arguments), env={"NO_COLOR": "1"})


@pytest.mark.parametrize(("arguments", "printed"), EXAMPLES)
def test_the_examples_of_the_page_print_what_it_shows(arguments, printed, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = run(arguments)
    assert result.exit_code == 0, result.output
    assert [line.rstrip() for line in result.stdout.splitlines()] == printed.splitlines()


def test_the_page_has_an_example():
    assert len(EXAMPLES) == 1


def test_json_and_files(tmp_path):
    result = run(f"{TOPK} --budget '64; 126' --batch 2 --context 4096 --out {tmp_path} --json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["schema_version"], document["measured"]) == (1, False)
    assert [row["attended"] for row in document["points"]] == [64, 126]
    assert json.loads((tmp_path / "bench.json").read_text()) == document
    with (tmp_path / "bench.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["bytes.dense"]) for row in rows] == [2 * 8 * 4096 * 512] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--batch 0", "--batch: positive numbers"),
        ("--context 4096,", "--context: positive numbers"),
        ("--kv int4", "--kv int4: known are bf16"),
        ("--query-heads 9", "9 query heads are no multiple of 8"),
        ("--model Qwen9", "no model 'Qwen9'"),
    ],
)
def test_what_is_refused(arguments, message):
    result = run(f"{TOPK} {arguments}")
    assert result.exit_code == 2
    assert message in re.sub(r"[\s│]+", " ", result.output)


def test_an_algorithm_with_errors_shows_them(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(
        "from vortex import *\n\nclass F(vFlow):\n    def forward_indexer(q, c):\n        return q\n"
    )
    assert run(str(path)).exit_code == 1


def test_a_warning_is_shown_once_beside_the_result(tmp_path):
    path = tmp_path / "unread.py"
    path.write_text(
        "from vortex import *\n\nclass F(vFlow):\n    bits = 32\n"
        "    def forward_indexer(q, c):\n        return First(4)\n"
    )
    result = run(f"{path} --json --budget '4; 8' --batch 1 --context 4096")
    assert result.exit_code == 0 and len(json.loads(result.stdout)["points"]) == 2
    assert result.stderr.count("warning VTX508") == 1


def test_the_centre_comes_first_then_small_before_large():
    made = points(["a", "b"], [1, 16], [4096, 32768])
    assert made[:3] == [Point("a", 16, 32768), Point("b", 16, 32768), Point("a", 1, 4096)]
    assert made[-1] == Point("b", 16, 4096)


def test_nested_figures_become_columns():
    assert flat({"a": 1, "b": {"c": {"d": 2}}}) == {"a": 1, "b.c.d": 2}
    assert Sweep(None, {"device": "x"}).document["points"] == []
