"""What a command names: the path of a file, `file.py:Name`, or an algorithm that comes with Vortex, `quest`."""

from __future__ import annotations

import os
import stat
import sysconfig
from pathlib import Path

from vortex.dsl.diagnostics import nearest

INSTALLED = Path("share", "vortex", "algorithms")


class Unreadable(Exception):
    """A path that gives no text: the facts of the finding `unreadable`."""

    def __init__(self, error: str, remedy: str, near: str = "") -> None:
        super().__init__(error)
        self.facts = {"error": error, "remedy": remedy, "near": near}


def split_target(target: str) -> tuple[str, str | None]:
    """A target as the path of its file and the name of the flow, None where it names none."""
    path, colon, name = target.rpartition(":")
    if colon and name.isidentifier() and path:
        return resolve(path), name
    return resolve(target), None


def resolve(path: str) -> str:
    """The file of a shipped name; any other path as it is. What lies at a path goes before a name."""
    if not path.isidentifier() or os.path.lexists(path) or path not in shipped():
        return path
    return str(folder() / f"{path}.py")


def shipped() -> list[str]:
    """Names of the algorithms that come with Vortex; none where their files are missing."""
    try:
        return sorted(path.stem for path in folder().glob("*.py"))
    except FileNotFoundError:
        return []


def folder() -> Path:
    """Where the shipped files are. Raises FileNotFoundError."""
    for place in places():
        if (place / "quest.py").is_file():
            return place
    shown = ", ".join(str(place) for place in places())
    raise FileNotFoundError(f"the algorithm files are in none of {shown}: install vortex-attention again")


def places() -> list[Path]:
    """Where they may be: beside the package in a source tree, below a data folder in an installation."""
    beside = Path(__file__).resolve().parents[2]
    user = sysconfig.get_path("data", sysconfig.get_preferred_scheme("user"))
    data = (Path(sysconfig.get_path("data")), Path(user), beside)  # the last one: `pip install --target`
    return [beside / "algorithms", *(each / INSTALLED for each in data)]


def read(path: str) -> str:
    """The text of an algorithm file. Raises Unreadable."""
    if path == "-":
        raise Unreadable("standard input is not read", "Write it to a file and give the file's path.")
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise Unreadable(
                "it is a folder", f"Name a file in it; `vortex check {path}` checks all of them."
            )
        if not stat.S_ISREG(mode):
            raise Unreadable("it is a pipe or a device", "Write it to a file and give the file's path.")
        return Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise _missing(path) from None
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is no text in UTF-8 ({error.reason} at byte {error.start})",
                         "Save it in UTF-8.") from None  # fmt: skip
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unreadable(reason, "Give the path of a Python file.") from None


def _missing(path: str) -> Unreadable:
    stem = Path(path).stem
    if stem in shipped():
        return Unreadable(
            "there is no such file", f"Write `{stem}` for the algorithm that comes with Vortex."
        )
    if not path.isidentifier():
        return Unreadable("there is no such file", "Give the path of a Python file in UTF-8.")
    return Unreadable("there is no such file, and no algorithm of this name comes with Vortex",
                      "Give the path of a Python file, or a name that `vortex algorithms` lists.",
                      nearest(path, shipped()))  # fmt: skip
