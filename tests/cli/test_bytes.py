"""`vortex bytes`: the example of its page, its JSON, and what it refuses."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from vortex.cli.bytes import bytes_command

PAGE = Path(__file__).parents[2] / "docs" / "bytes.md"
EXAMPLES = re.findall(r"```console\n\$ vortex bytes ([^\n]*)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def run(arguments, columns=120):
    app = typer.Typer()
    app.command()(bytes_command)
    return CliRunner().invoke(app, shlex.split(arguments), env={"COLUMNS": str(columns), "NO_COLOR": "1"})


def report(arguments):
    result = run(f"{arguments} --json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(("arguments", "printed"), EXAMPLES)
def test_the_examples_of_the_page_print_what_it_shows(arguments, printed):
    result = run(arguments)
    assert result.exit_code == 0
    assert [line.rstrip() for line in result.stdout.splitlines()] == printed.splitlines()


def test_no_figure_is_cut_where_the_terminal_is_narrow():
    arguments = "Qwen3-8B --context 131072 --batch 64"
    assert run(arguments, columns=60).stdout == run(arguments).stdout
    assert "…" not in run(arguments, columns=60).stdout


def test_the_page_has_examples():
    assert len(EXAMPLES) == 2


def test_json_carries_a_schema_version_and_whole_bytes():
    said = report("Qwen3-8B --context 32768")
    row = said["contexts"][0]
    assert said["schema_version"] == 1
    assert said["crossover"] == 67_291
    assert row["dense"] == {
        "mlp": 10_871_635_968,
        "attention": 3_019_898_880,
        "kv": 4_831_838_208,
        "entries": 0,
        "other": 1_245_284_352,
        "total": 19_968_657_408,
    }
    assert row["speedup"]["kv"] == pytest.approx(row["dense"]["total"] / row["sparse"]["kv"]["total"])
    assert "bound_us" not in row


@pytest.mark.parametrize(
    ("arguments", "crossover"),
    [
        ("Llama-3.1-8B", 76_069),
        ("Llama-3.1-8B --mlp-only", 61_440),
        ("Llama-3.1-8B --keep-projection 70%", 45_641),
        ("Llama-3.1-8B --keep-kv 0.5", 106_496),
        ("meta-llama/Llama-3.2-3B --keep-kv 30%", 35_109),
        ("Llama-3.1-8B --weight-bits 4", 19_017),
        ("Llama-3.1-8B --kv-tokens 2048", 55_296),
        ("Llama-3.1-8B --batch 4 --union 0.5", 19_017),
        ("Llama-3.1-8B --keep-kv 1", None),
    ],
)
def test_options_reach_the_account(arguments, crossover):
    assert report(arguments)["crossover"] == crossover


def test_an_entry_width_and_the_bytes_it_makes_are_the_same():
    by_width = report("Qwen3-8B --entry-width 256 --block-size 32")
    by_bytes = report("Qwen3-8B --entry-bytes 16")
    assert by_width == by_bytes
    assert by_width["entry_bytes_per_token"] == 16 * 8 * 36


def test_measured_costs_add_bounds_and_the_predicted_crossing():
    said = report("Llama-3.1-8B --context 4096 --bandwidth 4300 --kv-cost 10")
    row = said["contexts"][0]
    assert row["bound_us"]["dense"] == pytest.approx(row["dense"]["total"] / 4.3e6)
    assert said["measured"]["crossover"] - said["crossover"] == pytest.approx(
        320 * 4.3e6 / (0.7 * 131_072), abs=1
    )
    assert said["measured"]["kv_pays_from"] == round(320 * 4.3e6 / (0.7 * 131_072))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("Qwen3-9B", "did you mean Qwen3-8B"),
        ("Qwen3-8B --keep-kv 1.2", "lies in 0 to 1"),
        ("Qwen3-8B --keep-kv half", "a number such as 0.3 or 30%"),
        ("Qwen3-8B --keep-kv 0.3 --kv-tokens 5", "give one of the two"),
        ("Qwen3-8B --context 4k", "tokens separated by commas"),
        ("Qwen3-8B --context 0", "at least one token"),
        ("Qwen3-8B --batch 0", "at least one request"),
        ("Qwen3-8B --kv-cost 10", "needs --bandwidth"),
        ("Qwen3-8B --entry-width 128 --entry-bytes 16", "not both"),
        ("Qwen3-8B --entry-width 0", "positive"),
        ("Qwen3-8B --bandwidth 0", "bandwidth is positive"),
        ("", "Missing argument"),
    ],
)
def test_bad_usage_exits_with_2_and_says_what_to_write(arguments, words):
    result = run(arguments)
    assert result.exit_code == 2
    assert words in " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())
