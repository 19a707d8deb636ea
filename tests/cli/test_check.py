"""`vortex check`: what it prints, in which form, and its exit codes."""

import json
import os

import pytest


def test_a_file_without_problems(vortex, flow):
    result = vortex("check", flow)
    assert (result.exit_code, result.stdout) == (0, "1 file: no problems\n")


def test_a_mistake_shows_its_line_a_caret_and_the_remedy(vortex, broken):
    result = vortex("check", broken)
    assert result.exit_code == 1
    assert result.stdout == (
        f"{broken}:8:21: error VTX201: There is no operator and no other name Meen. Did you mean Mean?\n"
        '            c["mean"] = Meen(c["k"])\n'
        "                        ^^^^^^^^^^^^\n"
        "  = `vortex ops` lists the operators.\n"
        "1 file: 1 error\n"
    )


def test_json_lists_files_and_findings(vortex, flow, broken):
    result = vortex("check", flow, broken, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert document["schema_version"] == 1
    assert document["files"] == [{"target": str(flow), "ok": True}, {"target": str(broken), "ok": False}]
    (finding,) = document["findings"]
    assert (finding["code"], finding["severity"], finding["line"], finding["column"]) == (
        "VTX201",
        "error",
        8,
        21,
    )
    assert finding["file"] == str(broken) and finding["message"] and finding["remedy"]


def test_a_warning_alone_is_no_failure(vortex, tmp_path):
    path = tmp_path / "unread.py"
    path.write_text(
        "from vortex import *\nclass Unread(vFlow):\n"
        "    def forward_cache(c):\n        c['mean'] = Mean(c['k'])\n        c['max'] = Max(c['k'])\n"
        "    def forward_indexer(q, c):\n        return topK(Mean(GeMM(c['mean'], q.T), dim=2))\n"
    )
    result = vortex("check", path)
    assert result.exit_code == 0
    assert "warning VTX501" in result.stdout and result.stdout.endswith("1 file: 1 warning\n")


@pytest.mark.parametrize(
    "words", [["--set", "width=3", "budget=64"], ["--set", "width=3", "--set", "budget=64"]]
)
def test_one_set_or_several(vortex, flow, words):
    assert vortex("check", flow, *words).exit_code == 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("widht=3", ["VTX104", "Did you mean width?", "block_size", "budget", "width"]),
        ("budget=max(3", ["VTX107"]),
        ("block_size=24", ["VTX106"]),
        ("sink_blocks=-1", ["VTX105"]),
        ("budget", ["key=value", "'budget'"]),
        ("=3", ["key=value"]),
    ],
)
def test_a_bad_setting_is_bad_usage_and_no_place_in_the_file(vortex, flow, setting, words):
    result = vortex("check", flow, "--set", setting)
    assert result.exit_code == 2
    assert all(word in result.output for word in words), result.output
    assert "^" not in result.output


def test_a_bad_setting_beside_a_bad_file_blames_the_file(vortex, broken):
    assert vortex("check", broken, "--set", "block_size=24").exit_code == 1


def test_a_setting_given_twice_is_refused(vortex, flow):
    assert vortex("check", flow, "--set", "width=1", "width=2").exit_code == 2


def test_a_model_gives_the_shape(vortex, tmp_path):
    path = tmp_path / "wide.py"
    path.write_text(
        "from vortex import *\nclass Wide(vFlow):\n    def forward_cache(c):\n"
        "        c['part'] = Mean(c['k'])[:, 64:]\n"
        "    def forward_indexer(q, c):\n        return topK(Sum(c['part']))\n"
    )
    assert vortex("check", path).exit_code == 0
    refused = vortex("check", path, "--model", "SmolLM2-135M")
    assert refused.exit_code == 1 and "VTX332" in refused.stdout
    assert vortex("check", path, "--model", "SmolLM3").exit_code == 2


def test_what_the_file_prints_goes_to_stderr_without_control_characters(vortex, flow):
    flow.write_text(flow.read_text() + "print('hi \\x1b[31m')\n")
    result = vortex("check", flow, "--json")
    assert json.loads(result.stdout)["files"][0]["ok"]
    assert result.stderr == "hi \\x1b[31m\n"


@pytest.mark.parametrize("words", [["check"], ["check", "--nope"], ["chek", "a.py"]])
def test_bad_usage(vortex, words):
    result = vortex(*words)
    assert result.exit_code == 2
    assert "Usage" in result.stderr and result.stdout == ""


def test_of_a_very_long_line_the_part_around_the_caret_is_shown(vortex, tmp_path):
    path = tmp_path / "deep.py"
    path.write_text("x = " + "(" * 3000 + ")" * 3000, encoding="utf-8")
    _, line, caret, *_ = vortex("check", path).stdout.splitlines()
    assert len(line) == 4 + 160
    assert 4 <= caret.index("^") < len(line)


def test_a_name_that_is_no_text_and_one_with_a_line_break_are_shown_on_one_line(vortex, tmp_path):
    for name in ("bad\udcff.py", "new\nline.py"):
        result = vortex("check", tmp_path / name)
        assert result.exit_code == 1 and "VTX005" in result.stdout


def test_a_folder_stands_for_the_algorithm_files_in_it(vortex, flow, broken, tmp_path):
    (tmp_path / "helper.py").write_text("raise SystemExit('not to be run')\n")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "flow.py").write_text(flow.read_text())
    result = vortex("check", tmp_path, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [each["target"] for each in document["files"]] == [str(broken), str(flow)]
    assert {each["code"] for each in document["findings"]} == {"VTX201"}
    assert result.stderr == f"{tmp_path}: left out, as they do not mention vFlow: helper.py\n"


def test_a_pipe_in_a_folder_is_told_and_not_waited_for(vortex, flow, tmp_path):
    os.mkfifo(tmp_path / "waits.py")
    result = vortex("check", tmp_path)
    assert result.exit_code == 1 and "waits.py: error VTX005" in result.stdout
    assert "2 files: 1 error" in result.stdout


def test_a_folder_without_an_algorithm_is_bad_usage(vortex, tmp_path):
    (tmp_path / "helper.py").write_text("WIDTH = 3\n")
    result = vortex("check", tmp_path)
    assert result.exit_code == 2 and "without a Python file that mentions vFlow" in " ".join(
        result.stderr.split()
    )


def test_a_shipped_algorithm_is_checked_by_its_name(vortex, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = json.loads(vortex("check", "quest", "--json").stdout)
    assert document["files"] == [{"target": "quest", "ok": True}]
    refused = vortex("check", "quset")
    assert refused.exit_code == 1 and "Did you mean quest?" in refused.stdout
