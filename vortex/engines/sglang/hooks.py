"""What is put around SGLang's functions: its memory budget counts entries and state, its information the counters."""

from __future__ import annotations

from typing import Any

from vortex.engines.sglang import compat, memory

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
