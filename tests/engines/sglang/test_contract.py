"""What the backend needs of SGLang, for the version that is installed: run with each that is supported."""

import inspect
import pkgutil

import pytest

from vortex.engines.sglang import compat, plugin
from vortex.engines.sglang.compat import Hook
from vortex.engines.sglang.errors import StartError

BACKEND = "sglang.srt.layers.attention.base_attn_backend.AttentionBackend"
CALLED = {
    f"{BACKEND}.init_forward_metadata": ["forward_batch"],
    f"{BACKEND}.init_forward_metadata_out_graph": ["forward_batch", "in_capture"],
    f"{BACKEND}.init_forward_metadata_in_graph": ["forward_batch"],
    f"{BACKEND}.init_cuda_graph_state": ["max_bs", "max_num_tokens"],
    f"{BACKEND}.get_cuda_graph_seq_len_fill_value": [],
    f"{BACKEND}.forward_decode": ["q", "k", "v", "layer", "forward_batch", "save_kv_cache", "kwargs"],
    f"{BACKEND}.forward_extend": ["q", "k", "v", "layer", "forward_batch", "save_kv_cache", "kwargs"],
    "sglang.srt.mem_cache.allocator.PagedTokenToKVPoolAllocator.alloc": ["need_size"],
    "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool.get_key_buffer": ["layer_id"],
    "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool.get_value_buffer": ["layer_id"],
    "sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size": [
        "kvc",
        "num_layers",
    ],
}
"""What is called or overridden, with its parameters."""


@pytest.fixture(scope="module", autouse=True)
def loaded():
    plugin.require_loaded()


def test_this_version_is_one_that_is_tested():
    version = compat.installed_version()
    compat.require_version(version)
    assert compat.tested(version)


@pytest.mark.parametrize("version", ["0.5.15", "0.5.24", "0.6.0", "1.0", "0.5.dev3"])
def test_other_versions_are_refused(version):
    with pytest.raises(StartError, match=r"VTX620: This is SGLang .*0\.5\.16 to 0\.5\.23"):
        compat.require_version(version)


@pytest.mark.parametrize("version", ["0.5.16", "0.5.17.post2", "0.5.23+cu130"])
def test_versions_in_between_are_not(version):
    compat.require_version(version)


@pytest.mark.parametrize("target", CALLED)
def test_what_is_called_has_its_parameters(target):
    parameters = [
        name for name in inspect.signature(pkgutil.resolve_name(target)).parameters if name != "self"
    ]
    assert parameters[: len(CALLED[target])] == CALLED[target]


def test_allocators_have_what_is_followed():
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    allocator = pkgutil.resolve_name("sglang.srt.mem_cache.allocator.PagedTokenToKVPoolAllocator")
    assert {"alloc", "alloc_extend", "alloc_decode", "free"} <= set(dir(allocator))
    assert {"alloc", "clear", "available_size"} <= set(dir(ReqToTokenPool))
    assert "self.req_generation" in inspect.getsource(ReqToTokenPool)


def test_every_hook_landed():
    assert len(plugin._hooks) >= 3 and compat.missing(plugin._hooks) == []


def test_a_hook_that_did_not_land_is_named():
    target, gone = (
        "sglang.srt.managers.scheduler.Scheduler.get_internal_state",
        "sglang.srt.managers.scheduler.Gone.run",
    )
    assert compat.missing([Hook(target, print), Hook(gone, print)]) == sorted([target, gone])


@pytest.mark.parametrize(
    ("problem", "code", "part"),
    [
        (StartError("version", version="0.6", supported="0.5.16 to 0.5.23"), "VTX620", "0.6"),
        (ValueError("no such target"), "VTX621", "no such target"),
    ],
)
def test_what_sglang_swallows_is_told_by_the_process_that_serves(monkeypatch, problem, code, part):
    monkeypatch.setattr(plugin, "_problem", problem)
    with pytest.raises(StartError) as caught:
        plugin.create(None)
    assert caught.value.code == code and part in str(caught.value)


def test_a_backend_without_all_of_its_hooks_does_not_start(monkeypatch):
    monkeypatch.setattr(plugin, "_hooks", [Hook("sglang.srt.managers.scheduler.Scheduler.run_batch", print)])
    with pytest.raises(StartError, match=r"VTX621: .*Scheduler\.run_batch"):
        plugin.create(None)


def test_the_backend_is_a_choice_of_each_flag():
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    choices = {
        action.option_strings[0]: action.choices for action in parser._actions if action.option_strings
    }
    for flag in ("--attention-backend", "--decode-attention-backend", "--prefill-attention-backend"):
        assert "vortex" in choices[flag]


def test_ends_of_shared_reads_where_sglang_asks_for_them():
    ends = compat.shared_read_ends()
    assert (ends is None) == (compat.installed_version() == "0.5.16")
    assert ends is None or {"IN_REPLAY", "UNKNOWN"} <= set(ends.__members__)
