"""Every provider against attention by the book, on a CUDA device, in the types that only it computes."""

from dataclasses import replace

import pytest
import torch
from attention_cases import check, make, with_selection

from vortex.attention.auto import AutoProvider
from vortex.attention.flashinfer import FlashInferProvider
from vortex.attention.measure import made_up, time_in_graph
from vortex.attention.provider import Features, Provider, StepShape, Unsupported
from vortex.attention.reference import ReferenceProvider, attend
from vortex.attention.triton_split import Schedule, TritonProvider
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.pool import KVPool
from vortex.vtensor.selection import Selection

pytestmark = pytest.mark.gpu
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TRITON = {
    "default": TritonProvider(),
    "three": TritonProvider(Schedule(splits=3, tile=32)),
    "ahead": TritonProvider(Schedule(splits=2, tile=32, stages=3, ahead=True)),
    "swap": TritonProvider(Schedule(splits=2, tile=64, stages=3, swap=True)),
    "one": TritonProvider(Schedule(splits=1, tile=32, stages=1)),
    "pdl": TritonProvider(Schedule(splits=4, tile=32, pdl=True)),
}
FLASHINFER = {"tensor cores": FlashInferProvider(True), "no tensor cores": FlashInferProvider(False)}
PROVIDERS: dict[str, Provider] = {**TRITON, **FLASHINFER, "reference": ReferenceProvider()}
EDGES = [1, 15, 16, 17, 63, 64, 65, 0]


def providers(*, flashinfer: bool = True, without: tuple[str, ...] = ()):
    every = PROVIDERS if flashinfer else TRITON
    some = {name: provider for name, provider in every.items() if name not in without}
    return pytest.mark.parametrize("provider", some.values(), ids=some.keys())


@providers()
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_lengths_around_a_block_boundary_and_a_padded_slot(provider, dtype):
    case = make(EDGES, query=8, kv=2, dim=128, dtype=dtype, device="cuda")
    check(case, case.run(provider))


GROUPS, DIMS = (1, 3, 5, 6, 7, 16), (64, 80, 96, 128, 192, 256)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("group", GROUPS)
def test_groups_and_head_dims(group, dim):
    case = make([65, 300, 16], query=2 * group, kv=2, dim=dim, budget=6, dtype=BF16, device="cuda")
    check(case, case.run(TRITON["default"]))


@providers(flashinfer=False, without=("default",))
@pytest.mark.parametrize(("group", "dim"), list(zip(GROUPS, DIMS, strict=True)))
def test_groups_and_head_dims_of_other_schedules(provider, group, dim):
    case = make([65, 300, 16], query=2 * group, kv=2, dim=dim, budget=6, dtype=BF16, device="cuda")
    check(case, case.run(provider))


@providers(flashinfer=False, without=("swap", "one", "pdl"))
@pytest.mark.parametrize("block", [1, 8, 16, 32, 64, 128])
def test_block_sizes_and_pages_of_four_blocks(provider, block):
    case = make(
        [1, block, 5 * block + 1, 1000, 0], block=block, page=4 * block, budget=5, dtype=BF16, device="cuda"
    )
    check(case, case.run(provider))


@pytest.mark.parametrize("group", [1, 2, 4, 5, 7, 8])
def test_flashinfer_groups(group):
    case = make([65, 300, 16], query=2 * group, kv=2, dim=128, budget=6, dtype=BF16, device="cuda")
    check(case, case.run(FlashInferProvider()))


@pytest.mark.parametrize("block", [1, 8, 32, 64])
@pytest.mark.parametrize("provider", FLASHINFER.values(), ids=FLASHINFER.keys())
def test_flashinfer_block_sizes(provider, block):
    case = make([1, block, 5 * block + 1, 400], query=8, block=block, page=2 * block, dim=128, dtype=BF16,
                device="cuda")  # fmt: skip
    check(case, case.run(provider))


@providers()
def test_strides_of_queries_and_pools(provider):
    case = make([50, 20], query=8, kv=2, dim=128, dtype=BF16, device="cuda", layout="halves")
    wide = torch.full((2, 11, 128), torch.nan, dtype=BF16, device="cuda")
    wide[:, :8] = case.q
    case.q = wide[:, :8]
    check(case, case.run(provider))


@pytest.mark.parametrize("kv_dtype", [E4M3, E5M2], ids=str)
@providers()
def test_8_bit_pools_with_scales(provider, kv_dtype):
    case = make(
        EDGES, query=8, kv=2, dim=128, dtype=BF16, kv_dtype=kv_dtype, scales=(0.5, 2.0), device="cuda"
    )
    check(case, case.run(provider))
    unscaled = replace(case, pool=replace(case.pool, scales=None))
    assert not torch.allclose(case.run(provider)[0], unscaled.run(provider)[0], atol=0.05)


@providers(flashinfer=False)
def test_fp32(provider):
    case = make(EDGES, dtype=FP32, device="cuda")
    check(case, case.run(provider))


@providers(flashinfer=False, without=("swap", "ahead", "pdl"))
@pytest.mark.parametrize(
    "features", [Features(20), Features(soft_cap=2.0), Features(sinks=True), Features(9, 3.0, True)]
)
@pytest.mark.parametrize("lists_dense", [True, False])
def test_features_and_dense_rows(provider, features, lists_dense):
    case = make([700, 33, 0, 300], features=features, dense=[True, False, False, True],
                lists_dense=lists_dense, dtype=BF16, device="cuda")  # fmt: skip
    check(case, case.run(provider))


def test_flashinfer_soft_cap():
    case = make([70, 33], query=8, dim=128, features=Features(soft_cap=2.0), dtype=BF16, device="cuda")
    check(case, case.run(FLASHINFER["tensor cores"]))


@providers(flashinfer=False)
def test_first_ids_are_all_minus_one_and_no_valid_key_at_all(provider):
    case = make([100, 100, 100], budget=4, dtype=BF16, device="cuda")
    case.selection.ids[0, :, :3] = -1
    case.selection.ids[1] = -1
    case.selection.counts[2] = 0
    check(case, case.run(provider))


@providers()
def test_logits_spread_by_100000(provider):
    case = make([60, 64], query=8, dim=128, budget=4, dtype=BF16, device="cuda")
    case.q.mul_(1e4)
    check(case, case.run(provider))


@providers(without=("reference",))
def test_a_captured_graph_serves_other_lengths_and_page_tables(provider):
    steps = [
        [500, 300, 70, 80, 90, 100, 110, 500],
        [64, 65, 63, 1, 500, 0, 0, 0],
        [500, 16, 17, 15, 48, 49, 0, 500],
        [500, 300, 70, 80, 90, 100, 110, 500],
    ]
    cases = [make(lengths, query=8, dim=128, budget=4, dtype=BF16, device="cuda", seed=seed)
             for seed, lengths in enumerate(steps)]  # fmt: skip
    live = make(steps[0], query=8, dim=128, budget=4, dtype=BF16, device="cuda", seed=9)
    planned = provider.plan(live.shape, live.features)
    out, lse = torch.empty_like(live.q), torch.empty(live.q.shape[:2], device="cuda")
    arguments = (live.q, live.pool, live.selection, live.batch, live.scale, out, lse)
    planned.update(live.selection.counts[:, 0].tolist())
    planned.run(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        planned.run(*arguments)
    for case in cases:
        for mine, theirs in zip(tensors(live), tensors(case), strict=True):
            mine.copy_(theirs)
        planned.update(case.selection.counts[:, 0].tolist())
        out.fill_(torch.nan)
        graph.replay()
        check(live, (out, lse))


def tensors(case):
    batch, selection = case.batch, case.selection
    return (case.q, *case.pool.tensors.values(), batch.lengths, batch.page_table, selection.ids,
            selection.counts, selection.dense)  # fmt: skip


@providers(flashinfer=False)
def test_run_allocates_nothing(provider):
    case = make(EDGES, dtype=BF16, device="cuda")
    planned = provider.plan(case.shape, case.features)
    out, lse = torch.empty_like(case.q), torch.empty(case.q.shape[:2], device="cuda")
    arguments = (case.q, case.pool, case.selection, case.batch, case.scale, out, lse)
    planned.run(*arguments)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    planned.run(*arguments)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@providers()
def test_a_pool_of_more_than_2_to_the_31_elements(provider):
    """Two requests whose pages lie at the far end: pages above 65536, offsets above 2^32 bytes."""
    heads, slots = Heads(8, 8, 128), 2**21 + 2**16
    pool = KVPool({name: torch.empty(slots, 8, 128, dtype=BF16, device="cuda") for name in ("k", "v")}, 16)
    assert pool.tensors["k"].numel() > 2**31
    table = torch.arange(slots // 16 - 16, slots // 16, dtype=torch.int32, device="cuda").view(2, 8).flip(1)
    for tensor in pool.tensors.values():
        tensor[-256:].normal_()
    lengths = torch.tensor([128, 100], dtype=torch.int32, device="cuda")
    batch = Batch(
        lengths, table.contiguous(), torch.arange(2, dtype=torch.int32, device="cuda"), 16, 16, heads
    )
    ids = (
        torch.tensor([[0, 3, 7], [1, 2, 6]], dtype=torch.int32, device="cuda")[:, None]
        .expand(2, 8, 3)
        .contiguous()
    )
    counts = torch.full((2, 8), 3, dtype=torch.int32, device="cuda")
    selection = Selection(ids, counts, torch.zeros(2, dtype=torch.bool, device="cuda"))
    q = torch.randn(2, 8, 128, dtype=BF16, device="cuda")
    shape = StepShape(2, heads, 16, 16, 3, 8, BF16, BF16, q.device)
    planned = provider.plan(shape, Features())
    planned.update([3, 3])
    out, lse = planned.run(q, pool, selection, batch, 0.1)
    truth, truth_lse = attend(q, pool, selection, batch, 0.1, compute=torch.float64)
    assert torch.allclose(out.double(), truth, atol=0.02) and torch.allclose(
        lse.double(), truth_lse, atol=0.02
    )


def test_a_batch_alone_and_within_a_larger_one_repeats_bit_for_bit():
    case = make([500, 300, 70, 80], query=8, dim=128, dtype=BF16, device="cuda")
    for provider in TRITON.values():
        one, two = case.run(provider), case.run(provider)
        assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])


def test_equals_dense_where_the_budget_covers_everything():
    case = make([300, 40], budget=19, dtype=BF16, device="cuda")
    dense = with_selection(case, dense=torch.tensor([True, True], device="cuda"), lists_dense=False)
    for provider in TRITON.values():
        check(case, dense.run(provider))
        check(case, case.run(provider))


def test_auto_measures_keeps_and_says_why(tmp_path):
    case = make([300, 40], query=8, dim=128, dtype=BF16, device="cuda")
    auto = AutoProvider(folder=tmp_path)
    check(case, case.run(auto))
    reason = auto.plan(case.shape, case.features).reason
    assert "fastest measured on" in reason and "triton" in reason and "flashinfer" in reason
    again = AutoProvider(folder=tmp_path)
    assert again.plan(case.shape, case.features).reason == reason


def test_device_counts_go_to_triton_alone():
    case = make([300, 40], query=8, dim=128, dtype=BF16, device="cuda")
    shape = replace(case.shape, fixed_counts=False)
    with pytest.raises(Unsupported, match="counts known on the device alone"):
        FlashInferProvider().plan(shape, Features())
    assert "triton" in AutoProvider().plan(shape, Features()).reason


def test_time_in_graph_counts_one_call_a_layer():
    shape = StepShape(2, Heads(8, 2, 128), 16, 16, 4, 8, BF16, BF16, torch.device("cuda"))
    batch, pools, selections, q = made_up(shape, 128, 4, 2)
    planned = TritonProvider().plan(shape, Features())
    calls = [
        lambda p=p, s=s: planned.run(q, p, s, batch, 0.1) for p, s in zip(pools, selections, strict=True)
    ]
    timing = time_in_graph(calls)
    assert 0 < timing.low <= timing.median <= timing.high < 1000
