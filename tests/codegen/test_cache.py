"""The kernel cache: content keys, privacy, several processes, the size limit."""

from __future__ import annotations

import inspect
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vortex.codegen import cache
from vortex.codegen.cache import KernelCache, kernel_key, load_source
from vortex.codegen.folder import CacheError, private_folder, write_whole
from vortex.settings import SettingError, settings

SOURCE = "def twice(x):\n    return 2 * x\n"


@pytest.fixture
def kernels(tmp_path):
    return KernelCache(tmp_path / "kernels", limit=10_000)


def age(kernels, key, seconds):
    when = time.time() - seconds
    for suffix in (".py", ".json"):
        os.utime(kernels.path(key).with_suffix(suffix), (when, when))


def test_a_module_runs_and_its_source_can_be_read_back(kernels):
    module = kernels.load(kernel_key(SOURCE), SOURCE, "Flow")
    assert module.twice(21) == 42
    assert inspect.getsource(module.twice) == SOURCE
    assert module.__name__.isidentifier()


def test_a_module_is_imported_once(kernels):
    key = kernel_key(SOURCE)
    assert kernels.load(key, SOURCE) is kernels.load(key, SOURCE)


def test_the_key_depends_on_source_options_versions_and_device(monkeypatch):
    keys = [
        kernel_key(SOURCE),
        kernel_key(SOURCE + "\n"),
        kernel_key(SOURCE, {"kv": "bf16"}),
        kernel_key(SOURCE, {"kv": "fp8"}),
        kernel_key(SOURCE, device="cuda-90"),
    ]
    monkeypatch.setattr(cache, "versions", lambda: {"triton": "99"})
    keys.append(kernel_key(SOURCE))
    assert len(set(keys)) == len(keys)
    assert kernel_key(SOURCE) == kernel_key(SOURCE)


@pytest.mark.parametrize("name", ["../../evil", "a/b", "x\0y", "nul", "", "é" * 300, "\ud800"])
def test_a_flow_name_never_becomes_a_path(kernels, name):
    before = set(kernels.folder.parent.rglob("*"))
    key = kernel_key(SOURCE, {"flow": name})
    kernels.put(key, SOURCE, name)
    assert set(kernels.folder.parent.rglob("*")) - before == {
        kernels.path(key),
        kernels.path(key).with_suffix(".json"),
    }
    assert kernels.entries()[0].flow == name


@pytest.mark.parametrize("key", ["../../evil", "", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_what_is_no_key_is_refused(kernels, key):
    with pytest.raises(CacheError, match="64 hexadecimal digits"):
        kernels.put(key, SOURCE)


def test_a_file_that_was_changed_is_written_anew_and_never_run(kernels):
    key = kernel_key(SOURCE)
    kernels.put(key, SOURCE)
    kernels.path(key).write_text("raise SystemExit('tampered')\n")
    assert kernels.load(key, SOURCE).twice(2) == 4
    assert kernels.get(key) == SOURCE


def test_source_that_fails_leaves_no_half_module(kernels):
    source = "value = 1\nraise ValueError('no')\n"
    key = kernel_key(source)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            kernels.load(key, source)
    assert f"vortex_kernels_{key}" not in sys.modules


def test_a_description_that_is_damaged_does_not_matter(kernels):
    key = kernel_key(SOURCE)
    kernels.put(key, SOURCE, "F")
    for text in ("{", "[]", ""):
        kernels.path(key).with_suffix(".json").write_text(text)
        assert [each.key for each in kernels.entries()] == [key]
    kernels.path(key).with_suffix(".json").unlink()
    assert kernels.load(key, SOURCE).twice(1) == 2


def test_the_entries_used_longest_ago_go_first(kernels):
    sources = [f"# {'x' * 3000}{number}\n" for number in range(4)]
    keys = [kernel_key(source) for source in sources]
    for number, (key, source) in enumerate(zip(keys[:3], sources, strict=False)):
        kernels.put(key, source)
        age(kernels, key, 1000 - number)
    assert kernels.get(keys[0]) is not None  # a use makes the oldest the newest
    kernels.put(keys[3], sources[3])
    assert {each.key for each in kernels.entries()} == {keys[0], keys[2], keys[3]}
    assert sum(each.bytes for each in kernels.entries()) <= kernels.limit


def test_what_was_used_just_now_is_never_evicted(tmp_path):
    kernels = KernelCache(tmp_path / "k", limit=10)
    keys = []
    for number in range(3):
        source = SOURCE + f"# {number}\n"
        keys.append(kernel_key(source))
        kernels.put(keys[-1], source)
    assert {each.key for each in kernels.entries()} == set(keys)


def test_files_of_a_writer_that_died_go(kernels):
    part = kernels.folder / ".part-lost"
    part.write_text("half")
    os.utime(part, (time.time() - 7200,) * 2)
    kernels.put(kernel_key(SOURCE), SOURCE)
    assert not part.exists()


def test_clear_removes_everything(kernels):
    for number in range(3):
        kernels.put(kernel_key(SOURCE, {"n": number}), SOURCE)
    assert kernels.clear() == 3
    assert kernels.entries() == [] and list(kernels.folder.iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from vortex.codegen.cache import KernelCache, kernel_key
source = "def f():\\n    return 7\\n" + "# filler\\n" * 2000
kernels = KernelCache(Path(sys.argv[1]), limit=10)
for turn in range(60):
    key = kernel_key(source)
    kernels.put(key, source, "F")
    assert kernels.get(key) in (None, source)
    sys.modules.pop("vortex_kernels_" + key, None)
    assert kernels.load(key, source).f() == 7
    if turn % 7 == 0:
        kernels.clear()
    kernels.entries()
"""


def test_four_processes_write_and_clear_one_key(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "shared")]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    assert not list((tmp_path / "shared").glob(".part-*"))


def test_the_cache_imports_neither_torch_nor_triton(tmp_path):
    code = (
        "import sys; from vortex.codegen.cache import load_source; load_source('x = 1\\n');"
        "assert not {'torch', 'triton'} & set(sys.modules)"
    )
    environment = {**os.environ, "VORTEX_CACHE_DIR": str(tmp_path / "c")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert len(list((tmp_path / "c" / "kernels").glob("*.py"))) == 1


def test_folders_are_private(tmp_path):
    old = os.umask(0)
    try:
        folder = private_folder("kernels", root=tmp_path / "deep" / "cache")
    finally:
        os.umask(old)
    for each in (folder, folder.parent):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path, mode):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(CacheError, match=r"can be written by others.*chmod 700"):
        KernelCache(folder)


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(CacheError, match=r"belongs to another user.*VORTEX_CACHE_DIR"):
        KernelCache(tmp_path / "mine")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="VORTEX_CACHE_DIR"):
        KernelCache(tmp_path / "file")


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CacheError, match="No space left"):
        write_whole(tmp_path / "x.py", SOURCE)
    assert list(tmp_path.iterdir()) == []


def test_the_environment_moves_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VORTEX_CACHE_DIR", str(tmp_path / "moved"))
    monkeypatch.setenv("VORTEX_CACHE_LIMIT", "3MiB")
    assert settings().cache_limit == 3 * 2**20
    module = load_source(SOURCE)
    assert Path(module.__file__).parent == tmp_path / "moved" / "kernels"


@pytest.mark.parametrize("value", ["", "cache", "./x", "~/x", "/x\0y"])
def test_a_relative_cache_folder_is_an_error(value):
    with pytest.raises(SettingError, match="absolute path"):
        settings({"VORTEX_CACHE_DIR": value})


@pytest.mark.parametrize("value", ["", "-1", "1.5GiB", "512MB", "1e9", "x", "9" * 16, "٣", "1 GiB "])
def test_a_malformed_limit_is_an_error(value):
    with pytest.raises(SettingError, match="a number of bytes"):
        settings({"VORTEX_CACHE_LIMIT": value})


def test_the_default_is_the_cache_folder_of_the_user():
    found = settings({})
    assert found.cache_dir.is_absolute() and found.cache_dir.name.lower().startswith("vortex")
    assert found.cache_limit == 512 * 2**20
