"""Schedules that a search found: kept by program, options and device, used by the flows built afterwards; launches that
overlap."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vortex.codegen.build import Options, build
from vortex.codegen.compiled import CompiledFlow
from vortex.codegen.device import multiprocessors
from vortex.codegen.tune import Tuner, candidates, keep, kept
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_file
from vortex.vtensor.batch import Heads

FILE = Path(__file__).parents[2] / "algorithms" / "block_topk.py"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VORTEX_CACHE_DIR", str(tmp_path / "cache"))


def program(**hyper):
    return trace_file(FILE, hyper, Shape(2, 1, 64, 2)).program


def test_the_default_is_a_candidate_and_no_tile_outgrows_its_registers():
    default = build(program(), Options()).kernel("map_0").schedule
    found = list(candidates(default))
    assert default in found and len(set(found)) == len(found)
    assert all(each.tile * each.elements <= 512 * 32 * each.warps for each in found)


def test_a_schedule_is_kept_for_its_program_options_and_device():
    chosen = replace(build(program(), Options()).kernel("map_0").schedule, tile=8, warps=2)
    path = keep(program(), Options(), "device", {0: chosen}, [])
    assert kept(program(), Options(), "device") == {0: chosen}
    assert kept(program(), Options(), "another device") == {}
    assert kept(program(), Options("fp16"), "device") == {}
    assert kept(program(budget=9), Options(), "device") == {}
    for broken in ("", "[]", '{"schedules": {"0": {"tile": 1}}}', '{"schedules": 3}'):
        path.write_text(broken)
        assert kept(program(), Options(), "device") == {}


@pytest.mark.parametrize("layers", [2, 9])
def test_what_a_search_times_runs_for_a_model_of_any_depth(layers):
    traced = trace_file(FILE, {}, Shape(2, 1, 64, layers)).program
    tuner = Tuner(traced, Options("fp32"), 1, 40, torch.device("cpu"))
    calls = tuner.calls(0, tuner.built.of_step(0).schedule)
    assert len(calls) == 8
    for call in calls:
        call()


@pytest.mark.gpu
def test_a_search_on_the_device_is_kept_and_used():
    tuner = Tuner(program(), Options(), 2, 2048, torch.device("cuda"))
    tried = list(tuner.search())
    lost = [each.failure for each in tried if each.microseconds is None]
    assert all(failure.startswith("OutOfResources") for failure in lost) and len(lost) < len(tried) / 2, lost
    tuner.keep()
    (best,) = tuner.best().values()
    measured = [each for each in tried if each.microseconds is not None]
    assert min(measured, key=lambda each: each.microseconds).schedule == best
    assert CompiledFlow(program()).built.kernel("map_0").schedule == best


def test_a_selection_overlaps_others_where_it_leaves_most_multiprocessors_free():
    """Thread blocks of attention that start while some multiprocessors are taken lie unevenly."""
    flow = CompiledFlow(program())
    flow.pdl = True
    storage = flow.allocate(
        layers=1, pool_blocks=4, slots=4, max_blocks=4, heads=Heads(2, 1, 64), device=torch.device("cpu")
    )
    # Two stand for the CPU's.
    assert multiprocessors(storage.valid) == 2
    overlaps = [
        flow.workspace(storage, requests, 1, storage.valid.device).attended.selector.overlap["PDL"]
        for requests in (1, 2)
    ]
    assert overlaps == [True, False]
