"""The selection kernels against the torch reference and the value multiset of torch.topk.

Without a GPU they run in Triton's interpreter on small grids; `-m gpu` runs the same tests compiled
and at full sizes.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.codegen.selections import DEVICES, HEADS, KINDS, QUIET, SMALL_LONG, rows_of, select, size
from vortex.codegen.select import SelectConfig, SelectError, Selector
from vortex.codegen.select_launch import Launch, LongLaunch
from vortex.dsl.ops.ranking import threshold_ids, top_k_ids, top_p_ids

REFERENCE = {"top_k": top_k_ids, "top_p": top_p_ids, "threshold": threshold_ids}

pytestmark = QUIET


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def expect(scores, finished, take, *, kind="top_k", bound=None, sinks=0, recent=0, **options):
    """Runs a selection and compares every slot of every row with the reference."""
    ids, counts, out = select(
        scores, finished, take, kind=kind, bound=bound or 0.0, sinks=sinks, recent=recent, **options
    )
    extra = () if bound is None else (bound,)
    for row in range(scores.shape[0]):
        n, limit = finished[row // HEADS], take[row // HEADS]
        wanted = REFERENCE[kind](
            scores[row, : max(n, 0)].float().cpu(), *extra, limit, sinks, recent
        ).tolist()
        wanted += [n] if n >= 0 else []
        assert counts[row] == len(wanted), f"row {row}"
        assert ids[row].tolist() == wanted + [-1] * (ids.shape[1] - len(wanted)), f"row {row}"
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "launch",
    [
        Launch(4, 16, 128),
        Launch(4, 8, 256, keep=256, maxima=2),
        LongLaunch(512, sample=1024, tile=512, each=4, guess_warps=2, sift_warps=4, finish_warps=4),
    ],
)
def test_ids_are_those_of_the_reference(device, kind, launch):
    n = size(device, 2100, 8192)
    scores = rows_of(kind, 2 * HEADS, n).to(device)
    expect(scores, [n, n // 3], [125, 125], sinks=1, recent=1, launch=launch)


@pytest.mark.parametrize("n", [16384, 16385])
@pytest.mark.parametrize("k", [512, 2048])
def test_one_coarse_bucket_has_the_value_multiset_of_torch_topk(device, n, k):
    requests = size(device, 1, 17)
    scores = rows_of("one coarse bucket", requests * HEADS, n).to(device)
    ids, _, _ = select(scores, [n] * requests, [k] * requests)
    values = scores.cpu().gather(1, ids[:, :k].long())
    assert values.sort(descending=True).values.equal(scores.cpu().topk(k).values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_consecutive_bit_patterns_and_repeated_bf16_values(device, dtype):
    if dtype == torch.bfloat16 and device == "cpu":
        dtype = torch.float16  # the interpreter has no bf16
    count = size(device, 4096, 65536)
    if dtype == torch.float32:
        row = (0x3F800000 + torch.arange(count, dtype=torch.int32)).view(torch.float32)
    else:
        row = ((torch.arange(count) % 64) / 64).to(dtype)
    scores = torch.stack([row, row.flip(0)]).to(device)
    expect(scores, [count], [1024])


def test_winners_before_a_wall_of_equal_zeros(device):
    row = torch.cat([torch.arange(1, 101), torch.zeros(8220)])[
        torch.randperm(8320, generator=torch.Generator().manual_seed(1))
    ]
    scores = torch.stack([row, -row * 0 + row]).to(device)
    expect(scores, [8320], [2048])


def test_equal_maxima_are_taken_in_order(device):
    # Every run of 8 lanes holds the same best score, and more lanes reach the floor than are kept.
    row = torch.arange(8).repeat(256).float()
    scores = torch.stack([row, row.view(-1, 8).flip(1).reshape(-1)]).to(device)
    expect(scores, [2048], [125], launch=Launch(4, keep=256))


def test_ties_at_the_floor_are_kept_up_to_k_and_those_above_it_all(device):
    # 20 scores above 200 that tie: k below, at and above 20, so that the floor is among the 20, or the 200 tie at it.
    row = torch.zeros(1024)
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(5))
    row[order[:200]] = 1.0
    row[order[200:220]] = torch.arange(20) // 2 + 2.0
    scores = torch.stack([row, row.flip(0)]).to(device)
    for take in (3, 19, 20, 21, 50):
        expect(scores, [1024], [take], launch=Launch(2, 4, 64, keep=64))


def test_fewer_maxima_than_k(device):
    scores = rows_of("random", 2 * HEADS, 2100).to(device)
    scores[0, 3:] = -math.inf
    scores[1] = math.nan
    scores[1, ::97] = math.inf
    expect(scores, [2100, 1], [125, 125], sinks=1, recent=1, launch=Launch(4, keep=256))


def test_k_beyond_n_and_k_zero_and_rows_of_nothing(device):
    scores = rows_of("random", 5 * HEADS, 64).to(device)
    expect(scores, [64, 20, 0, 1, 33], [100, 100, 100, 100, 0])


def test_padded_slot_has_count_zero_and_no_ids(device):
    scores = rows_of("random", 2 * HEADS, 64).to(device)
    pages = torch.arange(2 * 65, dtype=torch.int32, device=device).view(2, 65)
    ids, counts, out = select(scores, [-1, 64], [10, 10], sinks=1, recent=1, pages=pages)
    assert counts.tolist() == [0, 0, 11, 11]
    assert bool((ids[:HEADS] == -1).all()) and bool((out.pool_blocks[0] == -1).all())
    assert bool((out.indices[0] == 0).all()), "unused indices name a page that can be read"


def test_nan_infinities_and_signed_zeros(device):
    inf, nan = math.inf, math.nan
    largest = torch.finfo(torch.float32).max
    rows = [
        [nan, -nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, largest, inf],
        [-inf] * 10,
        [nan] * 10,
        [-0.0, 0.0, -0.0, 0.0, -1.0, -0.0, 0.0, 1e-45, -1e-45, -0.0],
        [-inf, -largest, -inf, -largest, nan, -inf, -largest, 0.0, -0.0, -inf],
        [inf] * 10,
    ]
    scores = torch.tensor(rows, device=device)
    for take in (1, 2, 3, 5, 9, 10):
        for launch in (
            Launch(1),
            Launch(1, 1, keep=32),
            LongLaunch(256, 512, 1, tile=256, each=1, sift_warps=1, finish_warps=1),
        ):
            expect(scores, [10] * 3, [take] * 3, launch=launch)


@pytest.mark.parametrize("sinks, recent, take", [(1, 1, 8), (3, 0, 3), (0, 5, 2), (4, 60, 70), (64, 64, 200)])
def test_reserved_blocks_are_in_every_set(device, sinks, recent, take):
    scores = rows_of("random", 3 * HEADS, 100).to(device)
    expect(scores, [100, 50, 3], [take] * 3, sinks=sinks, recent=recent, width=max(take, sinks + recent) + 1)


def test_a_row_alone_and_in_a_batch_and_again(device):
    n = size(device, 512, 8192)
    scores = rows_of("few values", 4 * HEADS, n).to(device)
    together, _, _ = select(scores, [n] * 4, [100] * 4)
    again, _, _ = select(scores, [n] * 4, [100] * 4)
    alone, _, _ = select(scores[2 * HEADS : 3 * HEADS].contiguous(), [n], [100])
    assert together.equal(again)
    assert together[2 * HEADS : 3 * HEADS].equal(alone)


@pytest.mark.parametrize("kind", ["random", "few values", "constant"])
def test_long_rows_of_which_a_guess_keeps_a_part(device, kind):
    n = size(device, 12000, 131072)
    scores = rows_of(kind, 2 * HEADS, n).to(device)
    expect(scores, [n, 10000], [1500, 700], sinks=1, recent=2)


def test_segments_of_several_tiles(device):
    n = size(device, 70000, 1 << 20)
    scores = rows_of("random", HEADS, n).to(device)
    expect(scores, [n], [1500])


@pytest.mark.parametrize("kind", ["few values", "heavy tailed"])
def test_a_k_that_no_thread_block_holds_is_selected_tile_by_tile(device, kind):
    n = size(device, 17000, 200000)
    scores = rows_of(kind, 2 * HEADS, n).to(device)
    scores[0] = -math.inf
    scores[1, 100:] = math.nan
    pages = torch.arange(2 * (n + 1), dtype=torch.int32, device=device).view(2, n + 1)
    out = expect(scores, [n, n // 2], [n // 2 + 700, 40], sinks=1, recent=2, pages=pages)
    ids, count = out.ids[1, 0], int(out.counts[1, 0])
    assert out.pool_blocks[1, 0, :count].equal(ids[:count] + n + 1)
    expect(scores, [-1, n], [n // 2 + 700, n - 1], kind="threshold", bound=0.5)


@pytest.mark.parametrize("kind", ["top_k", "top_p", "threshold"])
@pytest.mark.parametrize("raised", [10, -10])
def test_a_sample_that_misleads_changes_nothing_but_the_time(device, kind, raised):
    # The sample reads 16 neighbours of every 48: these alone are high, so that less than k is kept, or low, so that
    # more is kept than there is room for.
    n = 1600
    scores = rows_of("random", HEADS, n).round(decimals=1)
    scores[:, (torch.arange(n) % 48) < 16] += raised
    bound = {"top_k": None, "top_p": 0.2, "threshold": -1.0}[kind]
    if kind == "top_p":
        scores = (scores * 10).round().clamp_min(0)
    expect(scores.to(device), [n], [200], kind=kind, bound=bound, sinks=1, recent=2, launch=SMALL_LONG)


@pytest.mark.parametrize("kind", ["sorted", "constant", "few values"])
def test_more_lanes_reach_the_floor_than_are_kept(device, kind):
    scores = rows_of(kind, HEADS, 2048).to(device)
    pages = torch.arange(2049, dtype=torch.int32, device=device).flip(0)[None].contiguous()
    out = expect(scores, [2048], [60], sinks=2, recent=1, launch=Launch(2, 8, 64, keep=64), pages=pages)
    ids = out.ids[0, 0]
    assert out.pool_blocks[0, 0].equal(2048 - ids)


@pytest.mark.parametrize("launch", [None, Launch(8, 8, 256, keep=256), SMALL_LONG])
def test_recorded_rows_of_a_model(device, launch):
    scores = torch.from_numpy(np.load(Path(__file__).with_name("scores.npy")))
    n, k = scores.shape[1], 125
    expect(scores.to(device), [n] * 3, [k] * 3, sinks=1, recent=1, launch=launch)


@pytest.mark.parametrize("kind", ["random", "few values"])
def test_selection_order_is_reserved_then_best_first(device, kind):
    scores = rows_of(kind, 3 * HEADS, 300).to(device)
    pages = torch.arange(3 * 301, dtype=torch.int32, device=device).view(3, 301)
    options = {"sinks": 1, "recent": 2, "pages": pages, "width": 141}
    ascending, counts, _ = select(scores, [300, -1, 90], [140, 140, 140], **options)
    ordered, ordered_counts, out = select(scores, [300, -1, 90], [140, 140, 140], order="score", **options)
    assert counts.equal(ordered_counts)
    for row, (ids, found) in enumerate(zip(ascending.tolist(), ordered.tolist(), strict=True)):
        if row < HEADS:
            value = scores[row].cpu()
            ids[:140] = [0, 298, 299, *sorted(ids[1:138], key=lambda block: (-float(value[block]), block))]
        assert found == ids, f"row {row}"
    assert out.pool_blocks[0, 0].tolist() == ordered[0].tolist()


@pytest.mark.parametrize("per_page", [1, 4])
def test_page_translation_and_flashinfer_indices(device, per_page):
    requests, n, block_size = 2, 96, 16
    scores = rows_of("random", requests * HEADS, n).to(device)
    pages = (
        torch.randperm(requests * 100, generator=torch.Generator().manual_seed(2)).view(requests, 100).int()
    )
    pages = (pages + 70000).to(device)
    out = expect(
        scores,
        [n, 37],
        [20, 20],
        sinks=1,
        recent=1,
        pages=pages,
        blocks_per_page=per_page,
        block_size=block_size,
    )
    for request in range(requests):
        for head in range(HEADS):
            ids = out.ids[request, head][: out.counts[request, head]].long()
            pool = pages[request, ids // per_page].long() * per_page + ids % per_page
            assert out.pool_blocks[request, head][: len(ids)].long().equal(pool)
            assert out.indices[request, head][: len(ids)].equal(pool * block_size * HEADS + head)
            assert bool((out.pool_blocks[request, head][len(ids) :] == -1).all())


def test_indices_beyond_two_to_the_31(device):
    scores = rows_of("random", HEADS, 40).to(device)
    pages = torch.full((1, 41), 2**28, dtype=torch.int32, device=device)
    _, _, out = select(scores, [40], [5], pages=pages, block_size=16)
    assert out.indices[0, 1, 0] == 2**28 * 16 * HEADS + 1


def test_a_row_stride_that_no_vector_fits(device):
    scores = rows_of("random", HEADS, 133).to(device)[:, :131]
    expect(scores, [131], [17])


def test_dense_rows_list_every_block(device):
    scores = rows_of("random", 2 * HEADS, 40).to(device)
    scores[:, 3] = -math.inf
    dense = torch.tensor([True, False], device=device)
    ids, counts, _ = select(scores, [40, 40], [12, 12], width=41, dense=dense)
    assert ids[0].tolist() == list(range(41)) and counts[0] == 41
    assert counts[HEADS] == 13


@pytest.mark.parametrize("n", [600, 12000])
def test_threshold_takes_what_reaches_it_up_to_the_limit(device, n):
    scores = rows_of("random", 2 * HEADS, n).to(device)
    expect(scores, [n, n // 2], [80, 500], kind="threshold", bound=2.0, sinks=1, recent=1)
    expect(scores, [n, n // 2], [80, 500], kind="threshold", bound=-math.inf)
    expect(scores, [n, n // 2], [80, 500], kind="threshold", bound=50.0)


@pytest.mark.parametrize("n", [600, 12000])
@pytest.mark.parametrize("p", [0.0, 0.25, 0.9, 1.0])
def test_top_p_takes_the_fewest_that_reach_the_share(device, n, p):
    # Whole numbers: their sums are exact in any order.
    generator = torch.Generator().manual_seed(3)
    weights = torch.randint(0, 40, (2 * HEADS, n), generator=generator).float().clamp_min(30) - 30
    weights[1] = 0
    expect(weights.to(device), [n, n // 2], [n // 2, 300], kind="top_p", bound=p, sinks=1, recent=1,
           width=min(n, 3000) // 2 + 1) if n == 600 else expect(
        weights.to(device), [n, n // 2], [900, 300], kind="top_p", bound=p, sinks=1, recent=1)  # fmt: skip


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kind": "best"}, "kind: one of"),
        ({"recall": 1.5}, "recall: a share"),
        ({"order": "random"}, "order: ascending or score"),
        ({"sinks": 6, "recent": 6}, "width: 8 slots"),
        ({"capacity": 0}, "are positive"),
    ],
)
def test_a_selection_that_contradicts_itself_is_refused(change, message):
    fields = {"kind": "top_k", "capacity": 64, "width": 8, "kv_heads": 2} | change
    with pytest.raises(SelectError, match=message):
        SelectConfig(**fields)


def test_top_p_that_would_keep_too_much_of_a_long_row_is_refused():
    with pytest.raises(SelectError, match="lower its max"):
        Selector(SelectConfig("top_p", 100_000, 60_000, HEADS), 1, "cpu")


def test_missing_and_misshapen_tensors_are_refused():
    scores = torch.zeros(HEADS, 32)
    with pytest.raises(SelectError, match="hold no 64 blocks"):
        select(scores, [32], [4], capacity=64)
    with pytest.raises(SelectError, match="pass lengths="):
        select(scores, [32], [4], recall=0.9)
    with pytest.raises(SelectError, match="with a contiguous last axis"):
        select(torch.zeros(3, 32), [32], [4])
