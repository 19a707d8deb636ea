"""Generated kernels on disk, keyed by content: Triton reads the source of a kernel back from its file.

Each entry is a module, `KEY.py`, and `KEY.json` with what it was made for. No name of an author becomes a path.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import vortex
from vortex.codegen.folder import TEMPORARY, CacheError, private_folder, write_whole
from vortex.settings import settings

GRACE = 60.0
"""Seconds after its last use during which no process evicts an entry: another one may be importing it."""

ABANDONED = 3600.0
"""Age in seconds from which a file that is still being written has lost its writer."""

KEY = re.compile(r"[0-9a-f]{64}")
MODULE = "vortex_kernels_"
"""Modules of generated kernels are called this and their key."""


@functools.cache
def versions() -> Mapping[str, str]:
    """What decides how a source compiles. Nothing is imported."""
    found = {"vortex": vortex.__version__, "python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in ("triton", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def kernel_key(source: str, options: Mapping[str, Any] | None = None, device: str = "") -> str:
    """Key of a kernel module: SHA-256 over its source, options, versions and device.

    options  anything JSON can hold, e.g. the KV dtype
    device   e.g. "cuda-90", or nothing for an interpreted kernel
    """
    parts = {"source": source, "options": options or {}, "versions": dict(versions()), "device": device}
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Kept:
    """One module of the cache.

    flow           name of the flow it was made for, as the author wrote it
    created, used  seconds since the epoch
    bytes          of the module and its description
    """

    key: str
    flow: str
    created: float
    used: float
    bytes: int


class KernelCache:
    """Modules in one folder, shared by any number of processes.

    folder  a private folder of the cache
    limit   bytes above which the entries used longest ago go
    """

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self.folder = private_folder("kernels") if folder is None else private_folder(root=folder)
        self.limit = settings().cache_limit if limit is None else limit

    def path(self, key: str) -> Path:
        """Where the module of a key lies. Raises CacheError for what is no key."""
        if not KEY.fullmatch(key):
            raise CacheError(f"a key is 64 hexadecimal digits, got {key!r}")
        return self.folder / f"{key}.py"

    def get(self, key: str) -> str | None:
        """The source of a key, or None; counts as a use."""
        path = self.path(key)
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        self._touch(key)
        return text

    def put(self, key: str, source: str, flow: str = "") -> Path:
        """Keeps a source; the path of its module. What is there and differs is written anew."""
        path = self.path(key)
        if self.get(key) == source:
            return path
        write_whole(path, source)
        write_whole(
            path.with_suffix(".json"), json.dumps({"flow": flow, "created": time.time(), **versions()})
        )
        self.trim()
        return path

    def _touch(self, key: str) -> None:
        """Notes the use in the description's time, which needs no writing of contents."""
        description = self.path(key).with_suffix(".json")
        try:
            description.touch(exist_ok=True)
        except OSError as error:
            raise CacheError(f"{description}: {error.strerror or error}") from None

    def entries(self) -> list[Kept]:
        """What is kept, the last used first."""
        found = [self._kept(path) for path in self.folder.glob("*.py") if KEY.fullmatch(path.stem)]
        return sorted((each for each in found if each is not None), key=lambda each: -each.used)

    def _kept(self, path: Path) -> Kept | None:
        try:
            module = path.stat()
        except FileNotFoundError:  # evicted by another process just now
            return None
        size, used, facts = module.st_size, module.st_mtime, {}
        description = path.with_suffix(".json")
        try:
            status = description.stat()
            size, used = size + status.st_size, max(used, status.st_mtime)
            facts = json.loads(description.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not written yet, or cut short by a full disk: the module counts alone
            pass
        facts = facts if isinstance(facts, dict) else {}
        created = facts.get("created", module.st_mtime)
        return Kept(path.stem, str(facts.get("flow", "")), float(created), used, size)

    def trim(self) -> int:
        """Evicts the entries used longest ago until the limit holds; how many went."""
        now = time.time()
        for part in self.folder.glob(f"{TEMPORARY}*"):
            if _age(part, now) > ABANDONED:
                part.unlink(missing_ok=True)
        # Sizes alone are quick; descriptions are read only where something must go.
        if sum(_size(each) for each in os.scandir(self.folder)) <= self.limit:
            return 0
        entries = self.entries()
        total, gone = sum(each.bytes for each in entries), 0
        for each in reversed(entries):
            if total <= self.limit or now - each.used < GRACE:
                break
            self._remove(each.key)
            total, gone = total - each.bytes, gone + 1
        return gone

    def clear(self) -> int:
        """Removes everything; how many modules went."""
        entries = self.entries()
        for each in entries:
            self._remove(each.key)
        return len(entries)

    def _remove(self, key: str) -> None:
        self.path(key).unlink(missing_ok=True)
        self.path(key).with_suffix(".json").unlink(missing_ok=True)

    def load(self, key: str, source: str, flow: str = "") -> ModuleType:
        """The module of a source, imported once a process under a name made of its key."""
        name = f"{MODULE}{key}"
        path = self.path(key)
        with _LOADING:
            known = sys.modules.get(name)
            if known is not None and known.__file__ == str(path):
                return known
            self.put(key, source, flow)
            return _execute(name, path, source)


_LOADING = threading.RLock()


def _execute(name: str, path: Path, source: str) -> ModuleType:
    """Runs a source as a module, from memory: nothing that lies on disk is run, and no bytecode is kept."""
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__spec__ = spec_from_loader(name, None, origin=str(path))
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:
        return 0


def _age(path: Path, now: float) -> float:
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def load_module(key: str, source: str, flow: str = "") -> ModuleType:
    """`KernelCache.load` in the user's cache folder."""
    return KernelCache().load(key, source, flow)


def load_source(source: str, flow: str = "") -> ModuleType:
    """The module of a source that needs no options: a rendered template."""
    return load_module(kernel_key(source), source, flow)
