"""Which algorithm a server decodes with: both ways to say it, and what is wrong with each."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vortex.dsl.ir import Shape
from vortex.engines.sglang.errors import REFUSALS, StartError
from vortex.engines.sglang.settings import override, settings

ALGORITHMS = Path(__file__).resolve().parents[2] / "algorithms"
QUEST = str(ALGORITHMS / "quest.py")


def config(value):
    return SimpleNamespace(vortex=value)


def refused(code, *parts, config=None, environment=None):
    with pytest.raises(StartError) as caught:
        settings(config, environment or {})
    assert caught.value.code == code
    for part in parts:
        assert part in str(caught.value)


def test_the_environment_names_a_file_and_its_hyper_parameters():
    found = settings(None, {"VORTEX_ALGORITHM": QUEST, "VORTEX_SET": "budget=64  dense_layers=0-1"})
    assert found.algorithm == Path(QUEST) and found.flow is None
    assert found.values == {"budget": "64", "dense_layers": "0-1"}


def test_a_shipped_algorithm_is_named_without_its_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = settings(None, {"VORTEX_ALGORITHM": "quest:Quest"})
    assert (found.algorithm, found.flow) == (Path(QUEST), "Quest")
    assert settings(config({"algorithm": "quest"}), {}).algorithm == Path(QUEST)


@pytest.mark.parametrize("named", ["quest", "quest:Quest", f"{QUEST}:Quest", Path(QUEST)])
def test_an_engine_is_given_a_path_or_a_shipped_name(named):
    found = settings(config(override(named, {"budget": 64})), {})
    assert (found.algorithm, found.values) == (Path(QUEST), {"budget": 64})
    assert found.flow == ("Quest" if ":" in str(named) else None)


def test_quotes_keep_a_budget_with_spaces_together():
    found = settings(
        None, {"VORTEX_ALGORITHM": QUEST, "VORTEX_SET": "'budget=max(32, 5% * blocks)' sink_blocks=2"}
    )
    assert found.values == {"budget": "max(32, 5% * blocks)", "sink_blocks": "2"}


def test_the_configuration_of_the_model_names_them_too():
    found = settings(
        config(json.loads(json.dumps({"algorithm": QUEST + ":Quest", "set": {"budget": 64}}))), {}
    )
    assert (found.algorithm, found.flow, found.values) == (Path(QUEST), "Quest", {"budget": 64})


def test_hyper_parameters_in_the_configuration_may_be_texts():
    assert settings(config({"algorithm": QUEST, "set": ["budget=64"]}), {}).values == {"budget": "64"}


def test_a_relative_path_is_that_of_the_server_s_folder(monkeypatch):
    monkeypatch.chdir(ALGORITHMS)
    assert settings(None, {"VORTEX_ALGORITHM": "quest.py"}).algorithm == Path(QUEST)


def test_the_same_choice_given_twice_is_one_choice():
    both = settings(config({"algorithm": QUEST, "set": {"budget": 64}}),
                    {"VORTEX_ALGORITHM": QUEST, "VORTEX_SET": "budget=64"})  # fmt: skip
    assert both.target == QUEST


def test_no_algorithm():
    refused("VTX601", "VORTEX_ALGORITHM=algo.py", config=SimpleNamespace())


def test_two_different_algorithms():
    refused("VTX602", "quest.py budget=64", "quest.py budget=65",
            config=config({"algorithm": QUEST, "set": {"budget": 65}}),
            environment={"VORTEX_ALGORITHM": QUEST, "VORTEX_SET": "budget=64"})  # fmt: skip


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("budget", "takes key=value"),
        ("budget=1 budget=2", "gives budget twice"),
        ("'budget=1", "a quotation mark is not closed"),
    ],
)
def test_hyper_parameters_that_cannot_be_read(value, part):
    refused("VTX603", "VORTEX_SET=", part, environment={"VORTEX_ALGORITHM": QUEST, "VORTEX_SET": value})


def test_hyper_parameters_without_an_algorithm():
    refused("VTX603", "without VORTEX_ALGORITHM", environment={"VORTEX_SET": "budget=64"})


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("quest.py", "is a dictionary"),
        ({"algorithm": QUEST, "budget": 64}, "has no key 'budget'"),
        ({"set": {"budget": 64}}, 'needs the path of a file as "algorithm"'),
        ({"algorithm": QUEST, "set": 64}, 'takes a dictionary as "set"'),
        ({"algorithm": QUEST, "set": ["budget"]}, '"set" takes key=value'),
    ],
)
def test_a_configuration_that_cannot_be_read(value, part):
    refused("VTX604", part, config=config(value))


def test_a_program_is_traced_for_the_model_s_shape():
    shape = Shape(16, 8, 128, 28)
    program = settings(None, {"VORTEX_ALGORITHM": QUEST, "VORTEX_SET": "budget=77"}).program(shape)
    assert program.shape == shape and program.policy.budget == "77"


@pytest.mark.parametrize(
    ("target", "value", "part"),
    [(QUEST, "bugdet=64", "VTX104"), (QUEST, "budget=5*block", "VTX107"), ("none.py", "", "VTX005"),
     (QUEST + ":Nope", "", "VTX004")],
)  # fmt: skip
def test_an_algorithm_with_errors_shows_the_findings(target, value, part):
    with pytest.raises(StartError) as caught:
        settings(None, {"VORTEX_ALGORITHM": target, "VORTEX_SET": value}).program(Shape())
    assert caught.value.code == "VTX605" and part in str(caught.value)


def test_codes_of_refusals_are_unique():
    codes = [each.code for each in REFUSALS.values()]
    assert len(set(codes)) == len(codes) and all(code.startswith("VTX6") for code in codes)


def test_reading_settings_imports_no_engine():
    code = "import sys, vortex.engines.sglang.settings; print(sorted({'sglang', 'torch', 'typer'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
