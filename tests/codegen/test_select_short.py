"""Rows much shorter than the capacity: a tile of their own, beside long rows in the same launch.

Without a GPU the kernels run in Triton's interpreter on small grids; `-m gpu` runs the same tests compiled.
"""

import math

import pytest
import torch

from tests.codegen.selections import DEVICES, HEADS, KINDS, QUIET, rows_of, select, size
from tests.codegen.test_select import expect
from vortex.codegen.select import SelectConfig, Selector
from vortex.codegen.select_launch import Launch, default_launch, fitted

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")]

FLOOR, WHOLE = Launch(2, 4, 64, keep=64, short=128), Launch(2, 4, 64, short=128)


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def ragged(device) -> tuple[Launch, list[int]]:
    """A launch and lengths around its short tile and half of it; the default launch of 8,192 scores on a GPU."""
    launch, capacity = (FLOOR, 300) if device == "cpu" else (default_launch(8192, 60, 128), 8192)
    assert isinstance(launch, Launch) and launch.short
    half = launch.short // 2
    return launch, [-1, 0, 1, half, half + 1, launch.short, launch.short + 1, capacity]


@pytest.mark.parametrize("kind", KINDS)
def test_short_and_long_rows_side_by_side(device, ragged, kind):
    launch, lengths = ragged
    scores = rows_of(kind, len(lengths) * HEADS, lengths[-1]).to(device)
    pages = torch.arange(len(lengths) * (lengths[-1] + 1), dtype=torch.int32, device=device).view(
        len(lengths), -1
    )
    out = expect(scores, lengths, [40] * len(lengths), sinks=1, recent=2, launch=launch, pages=pages)
    for request, row in enumerate(out.counts.tolist()):
        ids = out.ids[request, 0, : row[0]]
        assert out.pool_blocks[request, 0, : row[0]].equal(pages[request, ids.long()]), f"request {request}"


def test_short_rows_without_a_floor_for_long_ones(device):
    scores = rows_of("few values", 3 * HEADS, 300).to(device)
    expect(scores, [128, 300, 129], [50, 50, 20], sinks=1, recent=1, launch=WHOLE)


def test_nan_and_infinities_in_short_rows(device, ragged):
    launch, lengths = ragged
    scores = rows_of("few values", len(lengths) * HEADS, lengths[-1])
    scores[:, ::3] = -math.inf
    scores[:, 1::7] = math.nan
    scores[:, 2::50] = math.inf
    scores[-HEADS - 1] = -math.inf
    expect(scores.to(device), lengths, [30] * len(lengths), sinks=1, recent=1, launch=launch)


def test_k_beyond_short_rows_and_dense_rows(device, ragged):
    launch, lengths = ragged
    scores = rows_of("random", len(lengths) * HEADS, lengths[-1]).to(device)
    expect(scores, lengths, [lengths[5] + 5] * len(lengths), launch=launch)
    dense = torch.tensor([length == lengths[5] for length in lengths], device=device)
    ids, counts, _ = select(
        scores, lengths, [20] * len(lengths), width=lengths[-1] + 1, dense=dense, launch=launch
    )
    assert counts.tolist() == [
        each for n in lengths for each in [n + 1 if n == lengths[5] else min(n, 20) + 1] * HEADS
    ]
    assert ids[5 * HEADS, : lengths[5] + 1].tolist() == list(range(lengths[5] + 1))


@pytest.mark.parametrize("bound", [0.5, -math.inf])
def test_threshold_of_short_rows(device, ragged, bound):
    launch, lengths = ragged
    scores = rows_of("random", len(lengths) * HEADS, lengths[-1]).to(device)
    expect(
        scores, lengths, [40] * len(lengths), kind="threshold", bound=bound, sinks=1, recent=1, launch=launch
    )


@pytest.mark.parametrize("p", [0.2, 1.0])
def test_top_p_of_short_rows(device, ragged, p):
    # Whole numbers: their sums are exact in any order.
    launch, lengths = ragged
    generator = torch.Generator().manual_seed(3)
    weights = torch.randint(0, 40, (len(lengths) * HEADS, lengths[-1]), generator=generator).float() - 30
    weights = weights.clamp_min(0)
    weights[7] = 0
    expect(
        weights.to(device),
        lengths,
        [60] * len(lengths),
        kind="top_p",
        bound=p,
        sinks=1,
        recent=1,
        launch=launch,
    )


def test_a_stochastic_selection_of_short_rows_is_exact(device, ragged):
    launch, lengths = ragged
    scores = rows_of("random", len(lengths) * HEADS, lengths[-1]).to(device)
    tokens = [max(16 * n + 1, 0) for n in lengths]
    expect(scores, lengths, [40] * len(lengths), recall=0.9, lengths=tokens, launch=launch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_rows_that_no_vector_fits(device, ragged, dtype):
    if dtype == torch.bfloat16 and device == "cpu":
        dtype = torch.float16  # the interpreter has no bf16
    launch, lengths = ragged
    scores = rows_of("few values", len(lengths) * HEADS, lengths[-1] + 3).to(dtype).to(device)
    expect(scores[:, : lengths[-1]], lengths, [40] * len(lengths), launch=launch)
    expect(scores[:, : lengths[-1]].contiguous(), lengths, [40] * len(lengths), launch=launch)


def test_a_row_selects_the_same_whatever_the_capacity(device):
    n = size(device, 200, 700)
    row = rows_of("few values", HEADS, size(device, 2100, 8192)).to(device)
    alone, _, _ = select(row[:, :n].contiguous(), [n], [60])
    among, _, _ = select(row, [n], [60])
    assert alone.equal(among)


def test_capacities_that_have_a_tile_of_short_rows():
    """Shorter rows are selected from as they always were: their kernel has no other branch."""
    for length, most in ((512, 32), (512, 300), (1024, 60), (1024, 500)):
        launch = default_launch(length, most, 128)
        assert isinstance(launch, Launch) and not fitted(launch, length, most).short
    for length in (2048, 2560, 4096, 8192):
        for most in (60, 200, 500, 1000, 2000):
            launch = default_launch(length, most, 128)
            assert isinstance(launch, Launch) and 0 < fitted(launch, length, most).short < length


def test_a_tile_as_long_as_the_rows_is_none_of_short_ones():
    launch = Launch(4, 8, 128, short=256)
    assert fitted(launch, 257, 20).short == 256 and fitted(launch, 256, 20).short == 0
    assert Selector(SelectConfig("top_k", 200, 21, HEADS), 1, "cpu", launch).launch.short == 0


def test_a_tile_of_short_rows_that_leaves_threads_without_a_lane_is_refused():
    with pytest.raises(ValueError, match="short: 0, or one of"):
        Launch(8, short=128)
