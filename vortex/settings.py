"""Environment variables, read in one place: a malformed value is an error, never a default.

VORTEX_CACHE_DIR    folder for everything Vortex keeps, an absolute path (default: the user's cache folder)
VORTEX_CACHE_LIMIT  most that generated kernels may take, in bytes or with KiB, MiB or GiB (default: 512 MiB)
VORTEX_ALGORITHM    the algorithm that a serving engine decodes with: a path, `file.py:Name`, or a shipped name
VORTEX_SET          its hyper-parameters, `key=value` separated by spaces; quotes keep a value with spaces together
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class SettingError(ValueError):
    """An environment variable that says nothing Vortex understands."""

    def __init__(self, name: str, value: str, expected: str) -> None:
        super().__init__(f"{name}={value!r}: {expected}")


@dataclass(frozen=True)
class Settings:
    """What the environment decides.

    cache_dir    root of the cache
    cache_limit  bytes of generated kernels that are kept
    algorithm    what names the algorithm for serving, as it was given
    values       hyper-parameters for serving
    """

    cache_dir: Path
    cache_limit: int = 512 * 2**20
    algorithm: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)


def settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process. Raises SettingError."""
    environment = os.environ if environment is None else environment
    found = Settings(
        _cache_dir(environment.get("VORTEX_CACHE_DIR")),
        algorithm=environment.get("VORTEX_ALGORITHM"),
        values=_values(environment.get("VORTEX_SET", "")),
    )
    limit = environment.get("VORTEX_CACHE_LIMIT")
    return found if limit is None else replace(found, cache_limit=_size("VORTEX_CACHE_LIMIT", limit))


def _values(text: str) -> dict[str, str]:
    from vortex.dsl.assign import AssignmentError, assignments

    try:
        return assignments(shlex.split(text))
    except AssignmentError as error:
        raise SettingError("VORTEX_SET", text, str(error)) from None
    except ValueError:
        raise SettingError("VORTEX_SET", text, "a quotation mark is not closed") from None


def _cache_dir(value: str | None) -> Path:
    if value is None:
        import platformdirs

        return Path(platformdirs.user_cache_dir("vortex", appauthor=False))
    if not os.path.isabs(value) or "\0" in value:
        raise SettingError(
            "VORTEX_CACHE_DIR", value, "an absolute path is expected, e.g. /home/me/vortex-cache"
        )
    return Path(value)


def _size(name: str, value: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15}) ?(B|KiB|MiB|GiB)?", value)
    if match is None:
        raise SettingError(name, value, "a number of bytes is expected, e.g. 268435456 or 256MiB")
    return int(match[1]) * UNITS[match[2] or ""]
