"""The user's cache folder: private, whole files only, refused where someone else could write into it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from vortex.settings import settings


class CacheError(RuntimeError):
    """The cache folder cannot be used; the message says why and what to do."""


REMEDY = "set VORTEX_CACHE_DIR to a folder of your own"


def private_folder(*parts: str, root: Path | None = None) -> Path:
    """A folder of the cache, made with mode 0700 where it is missing.

    parts  names below the root, chosen by Vortex and never by an author
    root   the cache; by default what the settings say

    Raises CacheError for a folder of another user, or one that others may write to: code is imported from here.
    """
    folder = settings().cache_dir if root is None else root
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for part in ("", *parts):
            folder = folder / part
            folder.mkdir(mode=0o700, exist_ok=True)
            _check_private(folder)
    except OSError as error:
        raise CacheError(f"{folder}: {error.strerror or error}; {REMEDY}") from None
    return folder


def _check_private(folder: Path) -> None:
    if not hasattr(os, "getuid"):
        return
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise CacheError(f"{folder} is no folder; {REMEDY}")
    if status.st_uid != os.getuid():
        raise CacheError(f"{folder} belongs to another user, and code would be imported from it; {REMEDY}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(
            f"{folder} can be written by others, and code would be imported from it; run chmod 700 on it"
        )
    if status.st_mode & 0o077:
        folder.chmod(0o700)


def write_whole(path: Path, text: str) -> None:
    """Writes a file that readers see whole or not at all, whoever else writes it at the same time."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CacheError(f"{path}: {error.strerror or error}; {REMEDY}") from None


TEMPORARY = ".part-"
"""How names of files that are being written begin."""
