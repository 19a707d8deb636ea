"""docs/formats.md names the fields that the commands print, all of them."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vortex.cli.main import app

ROOT = Path(__file__).parents[2]
QUEST = str(ROOT / "algorithms" / "quest.py")


def fields(heading):
    """The names in the first column of the table after a line that contains `heading`."""
    after = (ROOT / "docs" / "formats.md").read_text("utf-8").split(heading, 1)[1]
    table = re.search(r"\| field \|.*\n\|---\|---\|\n((?:\|.*\n)+)", after)
    return {name for row in table[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_check(tmp_path):
    document = json.loads(invoke("check", tmp_path / "missing.py", "--json").stdout)
    assert set(document) == fields("vortex check FILE")
    assert set(document["findings"][0]) == fields("A finding:")
    assert set(document["files"][0]) == {"target", "ok"}


WRONG = (["check"], ["run"], ["bench", "--batch", "1", "--context", "4096"])


@pytest.mark.parametrize("command", WRONG, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("target", "setting", "status"), [("missing.py", "budget=64", 1), (QUEST, "bugdet=64", 2)]
)
def test_what_is_wrong_with_a_file_or_a_setting_is_the_same_document(command, target, setting, status):
    result = invoke(*command, target, "--set", setting, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (status, "")
    assert set(document) == fields("vortex check FILE")
    assert document["files"] == [{"target": target, "ok": False}]
    assert (
        document["findings"]
        == json.loads(invoke("check", target, "--set", setting, "--json").stdout)["findings"]
    )


@pytest.mark.parametrize("command", WRONG, ids=lambda words: words[0])
@pytest.mark.parametrize("usage", [["--nope"], ["--set", "budget"], ["--model", "no/such.json"]])
def test_bad_usage_leaves_stdout_empty(command, usage):
    result = invoke(*command, QUEST, "--json", *usage)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error" in result.stderr


def test_run():
    from vortex.cli.run import Comparison, _document
    from vortex.dsl.load import trace_file
    from vortex.engines.transformers.counters import Counters
    from vortex.engines.transformers.generate import Generation, Output

    out = Output([Generation([1])], 1.0, 1.0, 0, 0, Counters(), [])
    document = _document(trace_file(QUEST).program, None, {}, out, Comparison(1.0, None))
    assert set(document) == fields("vortex run FILE")
    assert set(document["dense"]) == {"tokens_per_s", "agreement", "mean_kl", "kl"}


def test_compile(tmp_path):
    assert invoke("compile", QUEST, "--emit", "ir", "--out", tmp_path).exit_code == 0
    document = json.loads((tmp_path / "manifest.json").read_text())
    assert set(document) == fields("vortex compile FILE")


def test_environment_variables():
    from vortex import settings

    table = (ROOT / "docs" / "formats.md").read_text("utf-8").split("## Environment")[1]
    assert set(re.findall(r"VORTEX_\w+", table)) == set(re.findall(r"VORTEX_\w+", settings.__doc__))


def test_bench():
    from vortex.bench.sweep import Sweep

    assert set(Sweep(None, {"device": "cpu", "measured": False}).document) == fields("vortex bench FILE") - {
        "versions", "commit", "shape", "copy_bytes_per_s"
    }  # fmt: skip
