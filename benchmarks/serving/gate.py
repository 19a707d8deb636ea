"""A plugin of SGLang: a server that has imported everything and touched no GPU yet waits for its turn.

Most of a start is imports, which several servers do at once. A server that waits looks for a file now and then.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

FOLDER = "BENCHMARK_GATE"
"""Variable of the environment: of one server."""
WAITING, GO = "waiting", "go"
"""Files there: the server makes the one when it waits, and goes on once there is the other."""


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.init_model_worker", wait, HookType.BEFORE)


def wait(*args: Any, **named: Any) -> None:
    import sglang.srt.models.registry  # noqa: F401  # every model's module: the last long import

    folder = Path(os.environ[FOLDER])
    (folder / WAITING).touch()
    while not (folder / GO).exists():
        time.sleep(0.1)
