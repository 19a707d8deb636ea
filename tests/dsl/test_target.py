"""What names an algorithm: paths, `file.py:Name`, shipped names; and what is said where none is there."""

import os
from pathlib import Path

import pytest

from vortex.dsl import target
from vortex.dsl.check import check
from vortex.dsl.load import trace_file
from vortex.dsl.target import folder, places, resolve, shipped, split_target

ROOT = Path(__file__).parents[2]
QUEST = str(ROOT / "algorithms" / "quest.py")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def missing(path):
    (finding,) = trace_file(path).findings
    assert finding.code == "VTX005"
    return finding


def test_a_file_may_be_named_with_its_flow():
    assert split_target("a/b.py:Quest") == ("a/b.py", "Quest")
    assert split_target("a/b.py") == ("a/b.py", None)
    assert split_target("C:/b.py") == ("C:/b.py", None)


def test_a_shipped_name_stands_for_its_file_with_and_without_a_flow():
    assert split_target("quest") == (QUEST, None)
    assert split_target("quest:Quest") == (QUEST, "Quest")
    assert trace_file("quest") == trace_file(QUEST)
    assert check("quest:Quest") == check(QUEST)


def test_every_shipped_file_has_a_name_that_means_it():
    files = sorted((ROOT / "algorithms").glob("*.py"))
    assert [resolve(name) for name in shipped()] == [str(file) for file in files]


@pytest.mark.parametrize("path", ["quest.py", "./quest", "algorithms/quest", "qu est", ""])
def test_only_a_plain_name_is_one(path):
    assert resolve(path) == path


@pytest.mark.parametrize("make", [lambda: Path("quest").write_text(""), lambda: os.mkdir("quest"),
                                  lambda: os.symlink("nowhere", "quest")])  # fmt: skip
def test_what_lies_at_the_path_goes_before_the_name(make):
    make()
    assert resolve("quest") == "quest"


def test_files_of_an_installation_are_found_where_there_is_no_source_tree(tmp_path, monkeypatch):
    tree, *installed = places()
    assert tree == ROOT / "algorithms"
    assert all(place.parts[-3:] == ("share", "vortex", "algorithms") for place in installed)
    monkeypatch.setattr(target, "places", lambda: [tmp_path / "tree", tmp_path])
    (tmp_path / "quest.py").write_text("")
    assert folder() == tmp_path and resolve("quest") == str(tmp_path / "quest.py")


def test_without_the_files_a_name_is_a_path_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(target, "places", lambda: [tmp_path])
    assert resolve("quest") == "quest"
    assert "no such file" in missing("quest").message


@pytest.mark.parametrize(
    ("path", "message", "remedy"),
    [
        ("quset", "no algorithm of this name comes with Vortex. Did you mean quest?", "`vortex algorithms`"),
        ("quest.py", "there is no such file.", "Write `quest`"),
        ("algorithms/quest.py", "there is no such file.", "Write `quest`"),
        ("mine.py", "there is no such file.", "the path of a Python file"),
        ("-", "standard input is not read.", "Write it to a file"),
        (os.devnull, "it is a pipe or a device.", "Write it to a file"),
        (".", "it is a folder.", "`vortex check .`"),
        ("a\0b", "null", "the path of a Python file"),
    ],
)
def test_a_path_that_gives_no_text(path, message, remedy):
    finding = missing(path)
    assert message in finding.message and remedy in finding.remedy
    assert "Errno" not in finding.message and not finding.message.endswith("?.")


def test_a_pipe_is_not_waited_for():
    os.mkfifo("pipe.py")
    assert "it is a pipe" in missing("pipe.py").message


def test_a_file_in_another_encoding_says_at_which_byte():
    Path("latin.py").write_bytes('NAME = "café"\n'.encode("latin-1"))
    assert "at byte 11" in missing("latin.py").message
