"""The decode step on a CUDA device: one graph for every batch, beside the reference."""

import itertools

import pytest
import torch
from step_cases import Decoding, program

from vortex.attention.dense import dense_kernels
from vortex.attention.flashinfer import FlashInferProvider
from vortex.attention.provider import Features
from vortex.attention.step import StepOptions
from vortex.attention.triton_split import Schedule, TritonProvider
from vortex.codegen.compiled import CompiledFlow, Options
from vortex.vtensor.batch import Heads
from vortex.vtensor.reference import ReferenceRunner

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
BF16, FP16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
HEADS = Heads(8, 2, 64)
FIRST = [500, 300, 70, 80, 90, 100, 110, 500]
LATER = {
    "five of eight": [64, 65, 63, 1, 500, 0, 0, 0],
    "shorter": [17, 16, 15, 1, 47, 48, 49, 33],
    "longer": [512, 511, 497, 496, 400, 399, 512, 510],
    "none": [0] * 8,
    "the first again": FIRST,
}


def flow(name="block_topk", layers=2, heads=HEADS, **hyper):
    return program(name, layers, heads, **{"budget": 4, "block_size": 16, **hyper})


def decoding(made, options=None, requests=8, most=512, **changes):
    options = options or StepOptions(provider=TritonProvider())
    return Decoding(made, requests, most, DEVICE, **{"dtype": BF16, **changes}, options=options)


def update(case):
    if case.step.needs_update:
        case.step.update(case.lengths)


def captured(case, lengths=FIRST):
    """The graph of a step: captured once, with these lengths."""
    case.write(lengths)
    update(case)
    case.decode()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.decode()
    return graph


def replay(case, graph, lengths):
    case.write(lengths)
    update(case)
    case.step.reset_counters()
    graph.replay()


def kept(case):
    return [(each.sparse, each.dense) for each in case.step.counters()]


@pytest.mark.parametrize("provider", [TritonProvider(), FlashInferProvider()], ids=["triton", "flashinfer"])
def test_a_graph_serves_other_lengths_padded_slots_and_page_tables(provider):
    case = decoding(flow(), StepOptions(provider=provider))
    graph = captured(case)
    for name, lengths in LATER.items():
        replay(case, graph, lengths)
        case.check()
        sparse = sum(length > 4 * 16 for length in lengths)
        dense = sum(0 < length <= 4 * 16 for length in lengths)
        assert kept(case) == [(sparse, dense)] * 2, name


def test_the_counters_of_a_replay_say_what_was_read():
    case = decoding(flow())
    graph = captured(case)
    replay(case, graph, [500, 64, 0, 65, 1, 100, 300, 0])
    graph.replay()
    for layer, reads in enumerate(case.step.counters()):
        found, _, _ = case.expected(layer)
        assert reads.kv_bytes == 2 * case.tokens(found) * 2 * HEADS.dim * 2
        assert (reads.sparse, reads.dense) == (8, 4)


@pytest.mark.parametrize("name", ["block_topk", "quest"])
@pytest.mark.parametrize("shortcut", [True, False])
def test_a_full_budget_equals_dense(name, shortcut):
    case = decoding(flow(name, budget="blocks"), shortcut=shortcut)
    graph = captured(case)
    for lengths in LATER.values():
        replay(case, graph, lengths)
        case.check(dense=True)
        live = sum(length > 0 for length in lengths)
        assert kept(case) == [(0, live) if shortcut else (live, 0)] * 2


def test_dense_and_sparse_rows_and_layers_share_a_graph():
    case = decoding(flow(layers=3, dense_below=100, dense_layers="1"))
    graph = captured(case)
    replay(case, graph, [99, 100, 101, 500, 0, 3, 65, 300])
    case.check()
    assert kept(case) == [(4, 3), (0, 7), (4, 3)]


@pytest.mark.parametrize("features", [Features(window=40), Features(soft_cap=2.0), Features(sinks=True)])
def test_what_a_model_asks_of_attention_reaches_sparse_and_dense_layers(features):
    case = decoding(flow(dense_layers="1"), StepOptions(provider=TritonProvider(), features=features))
    assert case.step.whole == [False, True]
    case.sinks = torch.linspace(-1, 3, HEADS.query, device=DEVICE) if features.sinks else None
    graph = captured(case)
    replay(case, graph, LATER["longer"])
    case.check_features()


COMBINATIONS = list(itertools.product(["block_topk", "quest"], [BF16, FP16], [False, True], [1, 4]))


@pytest.mark.parametrize(("name", "dtype", "eight_bits", "per_page"), COMBINATIONS)
def test_flows_types_and_pages(name, dtype, eight_bits, per_page):
    case = decoding(
        flow(name, layers=1), dtype=dtype, kv_dtype=E4M3 if eight_bits else None, per_page=per_page
    )
    graph = captured(case)
    for lengths in (LATER["five of eight"], LATER["longer"]):
        replay(case, graph, lengths)
        case.check()


SCHEDULES = [
    Schedule(3, 32, pdl=True),
    Schedule(1, 16, 3, 1, ahead=True, pdl=True),
    Schedule(2, 64, 3, swap=True, ahead=True, pdl=True),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    "policy", [{}, {"budget": "40% * blocks"}, {"reuse_layers": 2}, {"dense_below": 90}], ids=str
)
def test_policies_under_schedules(policy, schedule):
    case = decoding(flow(layers=4, **policy), StepOptions(provider=TritonProvider(schedule)))
    graph = captured(case)
    for lengths in LATER.values():
        replay(case, graph, lengths)
        case.check()


def test_selections_that_serve_several_steps_in_a_graph():
    case = decoding(flow(layers=2, reuse_steps=4), requests=3)
    for slot in range(3):
        case.step.runner.reset_slot(case.step.storage, slot)
        case.reference.reset_slot(case.truth, slot)
    start = [200, 64, 0]
    case.write(start)
    graph = torch.cuda.CUDAGraph()
    for number in range(9):
        lengths = [length + number if length else 0 for length in start]
        case.batch.lengths.copy_(torch.tensor(lengths))
        case.lengths = lengths
        case.q.copy_(case.values(case.q.shape, BF16))
        if number == 0:
            case.decode()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                case.decode()
        else:
            graph.replay()
        case.check()


def test_a_page_that_was_freed_is_summarised_again():
    case = decoding(flow(layers=1))
    graph = captured(case)
    for pool in case.pools:
        for tensor in pool.tensors.values():
            tensor.copy_(case.values(tensor.shape, tensor.dtype))
    case.step.valid.zero_()
    replay(case, graph, LATER["longer"])
    case.check()
    assert int(case.step.valid.sum()) == sum((length - 1) // 16 for length in LATER["longer"])


def labels():
    if not torch.cuda.is_available():
        return ["first"]
    shape = decoding(flow(layers=1, heads=Heads(8, 2, 128))).step.shape(BF16, 1)
    return list(dense_kernels(shape, Features()))


def test_the_dense_twin_with_every_kernel():
    for label in labels():
        case = decoding(flow(heads=Heads(8, 2, 128)), StepOptions(dense=True, dense_kernel=label))
        graph = captured(case)
        for lengths in LATER.values():
            replay(case, graph, lengths)
            case.check(dense=True)
            assert kept(case) == [(0, sum(length > 0 for length in lengths))] * 2, label


def test_a_step_allocates_nothing():
    case = decoding(flow())
    case.write(FIRST)
    case.decode()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    case.decode()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_dense_below_is_measured_printed_and_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said = []
    options = StepOptions(provider=TritonProvider(), say=said.append)
    made = flow(dense_below="auto", heads=Heads(8, 2, 128))
    case = decoding(made, options, requests=2, most=2048)
    assert said and said[0].startswith(f"dense_below = {case.step.dense_below}: measured on")
    again = decoding(made, options, requests=2, most=2048)
    assert (again.step.dense_below, said[1]) == (case.step.dense_below, said[0])
    graph = captured(case, [2048, 700])
    replay(case, graph, [1999, 2000])
    case.check()


def test_entries_in_8_bits_select_what_the_reference_selects_from_them():
    made = flow(layers=1)
    case = decoding(made)
    case.write(FIRST)
    flow8 = CompiledFlow(made, Options("bf16", entries="fp8"))
    reference = ReferenceRunner(made, entries=E4M3)
    memory = {"layers": 1, "pool_blocks": case.pages, "slots": 8, "max_blocks": 32, "heads": HEADS,
              "device": torch.device("cuda")}  # fmt: skip
    ours, theirs = flow8.allocate(**memory), reference.allocate(**memory)
    assert ours.entries[0]["centroids"].dtype == E4M3
    blocks = torch.arange(case.pages, device="cuda")
    for runner, storage in ((flow8, ours), (reference, theirs)):
        runner.summarise(storage, 0, case.pools[0], blocks)
    found = flow8.select(ours, 0, case.q[0], case.pools[0], case.batch)
    wanted = reference.select(theirs, 0, case.q[0], case.pools[0], case.batch)
    # fp8 has few values: rounding on an edge changes an entry by a step, and now and then a block.
    same = total = 0
    for row, head in itertools.product(range(8), range(HEADS.kv)):
        sets = [set(each.ids[row, head, : int(each.counts[row, head])].tolist()) for each in (found, wanted)]
        same, total = same + len(sets[0] & sets[1]), total + len(sets[1])
    assert same >= 0.97 * total
