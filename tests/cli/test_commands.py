"""compile, new, ops, cache and doctor."""

import errno
import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from vortex.cli.doctor import PACKAGES
from vortex.cli.ops import AXES
from vortex.dsl.load import trace_file
from vortex.dsl.registry import OPERATORS
from vortex.dsl.text import TextError, parse, print_program


def test_help_names_every_command(vortex):
    result = vortex("--help")
    assert result.exit_code == 0
    for name in ("run", "check", "compile", "new", "ops", "bytes", "cache", "doctor", "--version"):
        assert name in result.stdout


def test_version(vortex):
    import vortex as package

    assert vortex("--version").stdout == f"vortex {package.__version__}\n"


@pytest.mark.parametrize(("said", "hint"), [("chek", " Did you mean check?"), ("zzz", "")])
def test_an_unknown_command_is_bad_usage(vortex, said, hint):
    result = vortex(said, "file.py")
    assert result.exit_code == 2 and f"No such command '{said}'.{hint}" in " ".join(result.stderr.split())


def test_compile_prints_the_text_form(vortex, flow):
    result = vortex("compile", flow, "--emit", "ir", "--set", "budget=64")
    assert result.exit_code == 0
    assert parse(result.stdout) == trace_file(str(flow), {"budget": "64"}).program


def test_compile_writes_files_and_a_manifest(vortex, flow, tmp_path):
    out = tmp_path / "new" / "folder"
    result = vortex("compile", flow, "--emit", "ir", "--out", out, "--set", "width=3")
    assert result.exit_code == 0
    assert result.stdout.split() == [str(out / "ir.txt"), str(out / "manifest.json")]
    manifest = json.loads((out / "manifest.json").read_text())
    text = (out / "ir.txt").read_bytes()
    assert text.decode() == print_program(trace_file(str(flow), {"width": "3"}).program)
    assert manifest["schema_version"] == 1
    assert manifest["flow"] == "Simple"
    assert manifest["options"]["set"] == {"width": "3"}
    assert manifest["files"] == {"ir.txt": hashlib.sha256(text).hexdigest()}
    assert manifest["source"]["sha256"] == hashlib.sha256(flow.read_bytes()).hexdigest()


def test_compile_of_a_shipped_name_records_its_file(vortex, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert vortex("compile", "quest:Quest", "--emit", "ir", "--out", "out").exit_code == 0
    source = json.loads(Path("out/manifest.json").read_text())["source"]
    assert Path(source["path"]).name == "quest.py"
    assert source["sha256"] == hashlib.sha256(Path(source["path"]).read_bytes()).hexdigest()


def test_compile_of_a_broken_file_leaves_stdout_empty(vortex, broken):
    result = vortex("compile", broken, "--emit", "ir")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "VTX201" in result.stderr


def test_an_unknown_kind_is_bad_usage(vortex, flow):
    result = vortex("compile", flow, "--emit", "assembler")
    assert result.exit_code == 2 and "known are ir" in result.stderr


def test_a_folder_that_cannot_be_made_is_said(vortex, flow):
    result = vortex("compile", flow, "--emit", "ir", "--out", flow / "below")
    assert result.exit_code == 2 and "--out" in result.stderr


@pytest.mark.parametrize(("name", "file"), [("MyMethod", "my_method.py"), ("NSATopK2", "nsa_top_k2.py")])
def test_a_starter_file_passes_check(vortex, tmp_path, name, file):
    made = vortex("new", name, "--in", tmp_path)
    assert (made.exit_code, made.stdout) == (0, f"{tmp_path / file}\n")
    assert vortex("check", tmp_path / file).stdout == "1 file: no problems\n"


def test_a_starter_file_that_could_not_be_written_is_not_left_behind(vortex, tmp_path, monkeypatch):
    class Full(io.TextIOWrapper):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(
        Path, "open", lambda path, mode, encoding: Full(io.BufferedWriter(io.FileIO(path, "x")))
    )
    result = vortex("new", "MyMethod", "--in", tmp_path)
    assert result.exit_code == 2 and "No space left on device" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_starter_file_never_overwrites(vortex, tmp_path):
    (tmp_path / "mine.py").write_text("precious")
    result = vortex("new", "Mine", "--in", tmp_path)
    assert result.exit_code == 2 and "left as it is" in result.stderr
    assert (tmp_path / "mine.py").read_text() == "precious"


@pytest.mark.parametrize("name", ["../up", "a b", "class", "3d", "vFlow", ""])
def test_what_is_no_class_name_is_refused(vortex, tmp_path, name):
    assert vortex("new", name, "--in", tmp_path).exit_code == 2
    assert not list(tmp_path.iterdir())


def test_ops_lists_the_registry(vortex):
    public = [each for each in OPERATORS.values() if each.public]
    document = json.loads(vortex("ops", "--json").stdout)
    assert document["schema_version"] == 1
    assert [each["name"] for each in document["operators"]] == [each.name for each in public]
    assert all(each["doc"] and each["axes"] and each["signature"] for each in document["operators"])
    table = vortex("ops").stdout
    assert all(f"  {each.name}(" in table for each in public)


def test_every_family_says_what_it_does_to_axes():
    assert set(AXES) == {each.family for each in OPERATORS.values() if each.public}


def test_one_operator_in_full(vortex):
    shown = vortex("ops", "Mean").stdout
    assert shown.startswith("Mean(x, *, dim=None)\n") and OPERATORS["Mean"].doc in shown
    missed = vortex("ops", "Meen")
    assert missed.exit_code == 2 and "Did you mean Mean?" in missed.stderr
    assert "`vortex ops` lists them all" in vortex("ops", "Zzz").stderr


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("vortex.cli.cache.cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_kernels_are_listed_with_their_flows_and_a_bad_variable_is_told(vortex, monkeypatch, tmp_path):
    from vortex.codegen.cache import KernelCache, kernel_key

    monkeypatch.setenv("VORTEX_CACHE_DIR", str(tmp_path / "own"))
    source = "x = 1\n"
    KernelCache().put(kernel_key(source), source, "Quest\n[red]")
    listed = vortex("cache", "kernels").stdout
    assert str(tmp_path / "own") in listed
    assert f"{kernel_key(source)[:12]}" in listed and "Quest\\n[red]" in listed
    (module,) = json.loads(vortex("cache", "kernels", "--json").stdout)["modules"]
    assert module["key"] == kernel_key(source) and module["flow"] == "Quest\n[red]"
    monkeypatch.setenv("VORTEX_CACHE_DIR", "relative")
    assert vortex("cache").exit_code == 2 and "absolute path" in vortex("cache").stderr


def test_an_empty_cache(vortex, folder):
    assert vortex("cache").stdout == f"{folder}\n  empty\n"


def test_the_cache_is_listed_and_cleared_by_kind(vortex, folder):
    for kind, count in (("kernels", 2), ("models", 1)):
        (folder / kind / "deep").mkdir(parents=True)
        for number in range(count):
            (folder / kind / "deep" / f"{number}").write_bytes(b"x" * 1500)
    assert "kernels         2 files      3 kB" in vortex("cache").stdout
    assert vortex("cache", "nothing").exit_code == 2
    cleared = json.loads(vortex("cache", "kernels", "--clear", "--json").stdout)
    assert cleared["kinds"] == [{"kind": "kernels", "files": 2, "bytes": 3000}] and cleared["cleared"]
    assert [each.name for each in folder.iterdir()] == ["models"]


def test_clearing_does_not_follow_links(vortex, folder, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "link").symlink_to(kept)
    (folder / "other").symlink_to(kept)
    assert vortex("cache", "--clear").exit_code == 0
    assert (kept / "file").exists()


def test_doctor_names_versions_and_imports_nothing_heavy():
    code = (
        "import json, sys; from vortex.cli.doctor import examination; report = examination();"
        "report['heavy'] = [name for name in ('torch', 'triton', 'transformers') if name in sys.modules];"
        "print(json.dumps(report))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    report = json.loads(said.stdout)
    assert report["heavy"] == []
    assert report["schema_version"] == 1
    assert set(report["packages"]) == set(PACKAGES) and report["packages"]["lark"] != "not installed"
    assert report["attention_providers"]["reference"] == "installed"


def test_doctor_as_text(vortex):
    shown = vortex("doctor").stdout
    assert "attention_providers" in shown and "sglang_plugins" in shown and "folder" in shown


def test_the_text_form_carries_its_version(vortex, flow):
    text = vortex("compile", flow, "--emit", "ir").stdout
    assert text.startswith("ir 1\nflow ")
    with pytest.raises(TextError, match="version 2; version 1 is read"):
        parse(text.replace("ir 1", "ir 2", 1))


LIGHT = ["check FLOW", "compile FLOW --emit ir", "ops", "new Fresh", "cache", "doctor", "bytes Qwen3-8B"]


@pytest.mark.parametrize("line", LIGHT)
def test_commands_without_a_model_import_no_torch(line, flow, tmp_path):
    code = (
        "import sys; from typer.testing import CliRunner; from vortex.cli.main import app;"
        "result = CliRunner().invoke(app, sys.argv[1:]);"
        "print(result.exit_code, [name for name in ('torch', 'triton', 'transformers') if name in sys.modules])"
    )
    words = [str(flow) if word == "FLOW" else word for word in line.split()]
    said = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path)
    assert said.stdout == "0 []\n", said.stderr
