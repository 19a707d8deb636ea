"""`vortex serve`: what it hands to SGLang, and what it says before SGLang is asked."""

import os
import sys

import pytest
import typer

from vortex.cli.serve import backend_chosen


def test_the_backend_is_added_where_none_is_chosen():
    assert backend_chosen(["--model-path", "m"]) == ["--attention-backend", "vortex", "--model-path", "m"]


@pytest.mark.parametrize(
    "given",
    [
        ["--attention-backend", "vortex", "--model-path", "m"],
        ["--attention-backend=vortex"],
        ["--prefill-attention-backend", "fa3", "--decode-attention-backend", "vortex"],
        ["--attention-backend", "fa3", "--decode-attention-backend", "vortex"],
    ],
)
def test_a_choice_that_decodes_with_it_stays(given):
    assert backend_chosen(given) == given


@pytest.mark.parametrize("flag", ["--attention-backend", "--decode-attention-backend"])
def test_another_backend_is_bad_usage(flag):
    with pytest.raises(typer.BadParameter, match=f"{flag} triton.*leave it out"):
        backend_chosen([flag, "triton"])
    with pytest.raises(typer.BadParameter, match=f"{flag} triton"):
        backend_chosen([f"{flag}=triton"])


def test_errors_of_the_file_come_first(vortex, broken):
    result = vortex("serve", broken, "--model-path", "m")
    assert result.exit_code == 1 and "VTX201" in result.stderr


def test_settings_are_taken_out_of_the_arguments(vortex, flow):
    result = vortex("serve", flow, "--set", "bugdet=64", "--model-path", "m", "--port", "1")
    assert result.exit_code == 2 and "VTX104" in result.stderr


def test_without_sglang_it_says_what_to_install(vortex, flow, monkeypatch):
    monkeypatch.setitem(sys.modules, "sglang", None)
    for name in ("VORTEX_ALGORITHM", "VORTEX_SET"):
        monkeypatch.setenv(name, "")  # the command sets them for the processes it starts
    result = vortex("serve", flow, "--model-path", "m")
    assert result.exit_code == 2
    assert "sglang is not installed: run `pip install 'vortex-attention[sglang]'`" in result.stderr


@pytest.mark.parametrize(("given", "set_to"), [("simple.py", "simple.py"), ("simple.py:Simple", "simple.py:Simple"),
                                               ("quest", "algorithms/quest.py")])  # fmt: skip
def test_servers_get_the_path_of_the_file(vortex, flow, monkeypatch, given, set_to):
    monkeypatch.chdir(flow.parent)
    monkeypatch.setitem(sys.modules, "sglang", None)
    for name in ("VORTEX_ALGORITHM", "VORTEX_SET"):
        monkeypatch.setenv(name, "")
    vortex("serve", given, "--model-path", "m")
    found = os.environ["VORTEX_ALGORITHM"]
    assert os.path.isabs(found) and found.endswith(f"/{set_to}")
