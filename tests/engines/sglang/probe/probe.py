"""Looks into the process that serves, for tests: `engine.collective_rpc("vortex_probe", path=…)` writes JSON there."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def register() -> None:
    scheduler = sys.modules.get("sglang.srt.managers.scheduler")
    if scheduler is not None:
        scheduler.Scheduler.vortex_probe = vortex_probe
    if "SGLANG_USE_CPU_ENGINE" in os.environ and "VORTEX_PROBE_TRANSFERS" in os.environ:
        transfer_host_memory()


def transfer_host_memory() -> None:
    """SGLang takes what it transfers by NIXL to lie in a GPU's memory, unless it is told otherwise."""
    from sglang.srt.disaggregation.nixl import conn

    check = conn._normalize_kv_mem_kinds
    conn._normalize_kv_mem_kinds = lambda kinds, count: check(["DRAM"] * count, count)


def vortex_probe(scheduler: Any, path: str) -> None:
    """What an idle server holds: pages and rows that are free, wrong entries, memory, counters."""
    import psutil
    import torch

    from vortex.engines.sglang import hooks

    (backend,) = hooks.live
    found = {
        **free(scheduler),
        **wrong_entries(backend),
        "rss": psutil.Process().memory_info().rss,
        "allocated": torch.cuda.memory_allocated(),
        "reads": backend.counters.read().shown(),
        "steps": len(backend.steps),
        "pending": len(backend.pages.pending) + len(backend.slots.pending),
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file)


def free(scheduler: Any) -> dict[str, int]:
    """Slots that are free or held by the prefix cache alone, and free rows of requests."""
    pool, allocator = scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator
    cached = scheduler.tree_cache.evictable_size()
    cached = cached if isinstance(cached, int) else sum(cached)
    return {
        "tokens": allocator.available_size() + cached,
        "all_tokens": scheduler.max_total_num_tokens,
        "rows": pool.available_size(),
        "all_rows": len(pool.req_to_token) - 1,  # the first is nobody's
    }


def wrong_entries(backend: Any) -> dict[str, Any]:
    """Compares entries of all valid blocks, bit by bit, with what is made anew from the K and V in the pool."""
    import torch

    storage, flow = backend.storage, backend.flow
    valid = storage.valid.nonzero().flatten()
    wrong: set[int] = set()
    for layer, pool in enumerate(backend.pools):
        entries = {name: entry.data for name, entry in storage.entries[layer].items()}
        kept = {name: data[valid] for name, data in entries.items()}
        if len(valid):
            flow.summarise(storage, layer, pool, valid)
        for name, data in entries.items():
            same = (bits(kept[name]) == bits(data[valid])).flatten(1).all(1)
            wrong |= set(valid[~same].tolist())
            data[valid] = kept[name]
    assert torch.equal(storage.valid.nonzero().flatten(), valid)
    return {"valid": len(valid), "wrong": sorted(wrong)}


def bits(values: Any) -> Any:
    import torch

    return values.contiguous().view(torch.uint8)
