"""vortex algorithms: what it lists is what the files become."""

import json
import subprocess
import sys

import pytest

from vortex.cli.algorithms import describe
from vortex.codegen.build import build
from vortex.dsl.load import trace_file
from vortex.dsl.target import folder


def test_every_file_is_listed_with_its_first_line(vortex):
    result = vortex("algorithms")
    assert result.exit_code == 0
    files = sorted(folder().glob("*.py"))
    assert result.stdout.startswith(f"{len(files)} algorithms in {folder()}; a name stands for its file: ")
    for path in files:
        (row,) = [line for line in result.stdout.splitlines() if line.startswith(f"{path.stem} ")]
        assert row.endswith(path.read_text(encoding="utf-8").split("\n")[0].removeprefix('"""'))


def test_json_is_exact(vortex):
    rows = {each["name"]: each for each in json.loads(vortex("algorithms", "--json").stdout)["algorithms"]}
    quest, signs, h2o, loki = (rows[name] for name in ("quest", "sign_bits", "h2o", "loki"))
    assert (quest["entry_bytes"], quest["state"], quest["parameters"]) == (32, False, False)
    # A bit for each of 128 channels and token, and two bytes for each channel and block of 16.
    assert signs["entry_bytes"] == 128 / 8 + 2 * 128 / 16
    assert (h2o["entry_bytes"], h2o["state"]) == (0, True)
    assert loki["parameters"]


@pytest.mark.parametrize("name", ["block_topk", "sparq", "twilight", "h2o"])
def test_kernels_are_those_that_are_built(name):
    built = build(trace_file(folder() / f"{name}.py").program)
    assert describe(folder() / f"{name}.py").kernels == len(built.plan.steps)


def test_listing_needs_no_torch():
    code = (
        "import sys; from vortex.cli.algorithms import describe; from vortex.dsl.target import folder\n"
        "for path in folder().glob('*.py'): describe(path)\n"
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_missing_folder_is_told(vortex, monkeypatch, tmp_path):
    monkeypatch.setattr("vortex.dsl.target.places", lambda: [tmp_path / "share/vortex/algorithms"])
    result = vortex("algorithms")
    assert result.exit_code == 2 and "share/vortex/algorithms" in result.stderr
