"""A plugin of SGLang: a server that has imported everything and touched no GPU yet waits for its turn.

Most of a start is imports, which several servers do at once. A server that waits is blocked in a read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

FOLDER = "BENCHMARK_GATE"
"""Variable of the environment: where `gate` is, a named pipe, and where `waiting` is made."""


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.init_model_worker", wait, HookType.BEFORE)


def wait(*args: Any, **named: Any) -> None:
    import sglang.srt.models.registry  # noqa: F401  # every model's module: the last long import

    folder = Path(os.environ[FOLDER])
    (folder / "waiting").touch()
    (folder / "gate").read_bytes()
