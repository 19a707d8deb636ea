"""What the plugin attaches to SGLang's classes, and whether it did: SGLang swallows the errors of plugins."""

from __future__ import annotations

from typing import Any

from vortex.engines.sglang import compat, memory
from vortex.engines.sglang.errors import StartError

live: list[Any] = []
"""Backends of this process."""


def add_counters(answer: Any, *args: Any, **named: Any) -> None:
    """After `get_internal_state`: the counters, under "vortex"."""
    if live:
        answer.internal_state["vortex"] = live[0].counters.read().shown()


HOOKS = (
    compat.Hook(
        "sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size",
        memory.add_entry_bytes,
    ),
    compat.Hook(
        "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._profile_available_bytes",
        memory.reserve_state,
    ),
    compat.Hook("sglang.srt.managers.scheduler.Scheduler.get_internal_state", add_counters),
)


def require_landed() -> None:
    """Raises StartError."""
    absent = compat.missing(HOOKS)
    if absent:
        raise StartError("hooks", absent=", ".join(absent), version=compat.installed_version())
