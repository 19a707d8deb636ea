"""The benchmark of servers: which cases a pattern takes, what a log says, and the table."""

import subprocess
import sys
import threading
import time
import types
from pathlib import Path

from benchmarks.serving import gate
from benchmarks.serving.cases import SHAPES, Load, cases
from benchmarks.serving.report import report
from benchmarks.serving.run import chosen, dense_bytes, missing, rates
from benchmarks.serving.servers import Server

LOAD = Load(16, 32768, 400)
LOG = """
[00:00] Decode batch, #running-req: 16, #token: 9, gen throughput (token/s): 1.00, #q: 0
== 16x32768+400
[00:01] Prefill batch, #new-seq: 1, #new-token: 8192, #running-req: 16, input throughput (token/s): 9.9
[00:02] Decode batch, #running-req: 16, #token: 9, gen throughput (token/s): 70.50, #q: 0
[00:03] Decode batch, #running-req: 16, #token: 9, gen throughput (token/s): 989.25, #q: 0
[00:04] Decode batch, #running-req: 16, #token: 9, gen throughput (token/s): 991.00, #q: 0
[00:05] Decode batch, #running-req: 3, #token: 9, gen throughput (token/s): 200.00, #q: 0
== end
[00:06] Decode batch, #running-req: 16, #token: 9, gen throughput (token/s): 2.00, #q: 0
"""


def test_steady_rates_are_those_of_a_full_batch_after_prefill():
    assert rates(LOG, LOAD) == (16, [989.25, 991.0])
    assert rates(LOG, Load(8, 1, 1)) == (0, [])


def test_patterns_take_cases_and_loads_can_be_shorter():
    (case,) = chosen(["holds/*/vortex-128=50"], 4, tiny=False)
    assert case.loads == (Load(4, 32768, 50),) and case.values == {"block_size": 16, "budget": 128}
    assert chosen(["nothing"], None, tiny=False) == []


def test_cases_come_in_the_order_of_their_patterns_and_once():
    found = [
        each.name
        for each in chosen(["latency/Qwen3-8B/vortex-128", "holds/*", "holds/*/flashinfer"], None, False)
    ]
    assert found[0] == "latency/Qwen3-8B/vortex-128" and len(found) == 8
    assert len(chosen([], None, tiny=False)) == len(list(cases()))


def test_every_shape_has_every_budget():
    names = {each.name for each in cases()}
    assert len(SHAPES) == 4
    for model in SHAPES:
        for group in ("long-prompts", "long-outputs"):
            for kind in (
                "flashinfer",
                "flashinfer-tc",
                *(f"vortex-{budget}" for budget in (32, 64, 128, 256)),
            ):
                assert f"{group}/{model}/{kind}" in names
    (full,) = [each for each in cases() if each.name == "holds/Qwen3-1.7B/vortex-full"]
    assert full.values["budget"] * 16 >= 36864


def test_dense_bytes_count_every_token_of_every_step():
    (case,) = [each for each in cases() if each.name == "holds/Qwen3-1.7B/flashinfer"]
    # Two steps after the first token: 5 and 6 tokens, 28 layers, 8 KV heads of 128, K and V in 2 bytes.
    assert dense_bytes(case, Load(1, 4, 3), {}) == (5 + 6) * 28 * 8 * 128 * 2 * 2


def row(kind, rate, **more):
    return {"group": "holds", "model": "Qwen3-1.7B", "kind": kind, "load": LOAD.name, "steady_tokens_per_s": rate,
            "tokens_per_s": 300.0, "step_ms": 16 / rate * 1e3, **more}  # fmt: skip


def page(*rows):
    return report({"device": "GPU", "versions": {"sglang": "0.5.16"}, "commit": "abc", "rows": rows})


def test_the_table_sets_each_server_beside_both_dense_ones():
    sparse = row("vortex-128", 4500.0, counters={"kv_bytes": 1}, dense_kv_bytes=16)
    text = page(row("flashinfer", 1000.0), row("flashinfer-tc", 1250.0), sparse)
    load = "| Qwen3-1.7B | 16x32768+400 |"
    assert f"{load} vortex-128 |  | 4,500 | 3.56 | 4.50 | 3.60 | 6.2% | 300 | abc |" in text
    assert f"{load} flashinfer-tc |  | 1,250 | 12.80 | 1.25 | 1.00 |  | 300 | abc |" in text
    assert "\nsglang 0.5.16.\n" in text and "on GPU." in text


def test_servers_of_different_commits_are_not_set_beside_each_other():
    text = page(row("flashinfer", 1000.0, commit="old"), row("vortex-128", 4500.0))
    assert "| vortex-128 |  | 4,500 | 3.56 |  |  |" in text


def test_a_note_is_told_with_the_commits_it_belongs_to():
    assert "\nnew: two GPUs.\n" in page(
        row("flashinfer", 1.0), row("vortex-128", 1.0, commit="new", note="two GPUs")
    )


def test_requests_that_come_at_random_times_have_times_of_tokens():
    late = {"group": "latency", "load": "1/s 8192+256", "per_token_p50_ms": 2.5, "per_token_p95_ms": 3.0}
    rated = {**row("vortex-128", 1.0), **late}
    del rated["steady_tokens_per_s"]
    assert "| Qwen3-1.7B | 1/s 8192+256 | vortex-128 | 2.50 | 3.00 |  |  | 300 | abc |" in page(rated)


def test_a_pattern_may_take_one_load_and_results_that_are_there_are_left_out():
    (case,) = chosen(["long-prompts/Qwen3-8B/vortex-64/16x16384*=120"], None, tiny=False)
    assert case.loads == (Load(16, 16384, 120),)
    both = chosen(
        ["long-prompts/Qwen3-8B/vortex-64/16x16384*=120", "long-prompts/Qwen3-8B/*"], None, tiny=False
    )
    assert both[0].loads == (Load(16, 16384, 120), Load(16, 32768, 200)) and len(both) == 6
    there = {"group": "long-prompts", "model": "Qwen3-8B", "kind": "vortex-64", "load": "16x16384+120"}
    left = missing(both, {"rows": [there]})
    assert left[0].loads == (Load(16, 32768, 200),) and len(left) == 6
    assert missing([case], {"rows": [there]}) == []


def test_the_script_lists_its_cases_from_anywhere(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "sglang.py"
    command = [sys.executable, script, "--list", "--only", "latency/*/flashinfer"]
    listed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert listed.count("latency/Qwen3-") == 4 and "16x" not in listed and "8/s 8192+256" in listed


def test_a_server_waits_at_the_gate_until_its_turn(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sglang.srt.models.registry", types.ModuleType("registry"))
    for name in ("sglang", "sglang.srt", "sglang.srt.models"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setenv(gate.FOLDER, str(tmp_path))
    server = object.__new__(Server)
    server.folder = tmp_path
    assert not server.waits
    thread = threading.Thread(target=gate.wait, daemon=True)
    thread.start()
    give_up = time.monotonic() + 10
    while not server.waits:
        assert time.monotonic() < give_up
    thread.join(0.2)
    assert thread.is_alive()
    (tmp_path / gate.GO).touch()
    thread.join(10)
    assert not thread.is_alive()
