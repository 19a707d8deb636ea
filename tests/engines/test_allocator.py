"""Pages of the embedded engine's pool: sharing, reuse, eviction, validity of entries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vortex.engines.transformers.allocator import PageAllocator, PoolFull


def allocator(pages: int = 9, page_size: int = 4, block_size: int = 2) -> PageAllocator:
    return PageAllocator(pages, page_size, block_size)


def test_the_dummy_page_is_never_given_out():
    a = allocator(pages=4)
    run = a.acquire([1], 12)
    assert sorted(run.pages) == [1, 2, 3]


@pytest.mark.parametrize(("length", "pages"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_length_decides_how_many_pages(length, pages):
    assert len(allocator().acquire([7], length).pages) == pages


def test_full_pages_of_a_common_prefix_are_shared():
    a = allocator()
    first = a.acquire(list(range(10)), 10)
    a.remember(first, list(range(10)))
    second = a.acquire([*range(8), 99, 98], 12)
    assert second.pages[:2] == first.pages[:2]
    assert second.cached == 8
    assert second.pages[2] not in first.pages


def test_a_prefix_that_is_not_remembered_is_not_shared():
    a = allocator()
    first = a.acquire(list(range(10)), 10)
    assert a.acquire(list(range(10)), 10).shared == 0
    assert first.open


def test_the_last_token_is_never_taken_from_the_cache():
    a = allocator()
    first = a.acquire(list(range(8)), 8)
    a.remember(first, list(range(8)))
    assert a.acquire(list(range(8)), 8).cached == 4


def test_the_same_tokens_after_another_prefix_are_another_page():
    a = allocator()
    first = a.acquire([1, 1, 1, 1, 5, 5, 5, 5, 0], 9)
    a.remember(first, [1, 1, 1, 1, 5, 5, 5, 5, 0])
    assert a.acquire([2, 2, 2, 2, 5, 5, 5, 5, 0], 9).shared == 0


def test_a_freed_page_stays_cached_until_the_room_is_needed():
    a = allocator(pages=4)
    run = a.acquire(list(range(9)), 9)
    a.remember(run, list(range(9)))
    a.release(run)
    again = a.acquire(list(range(9)), 9)
    assert again.pages[:2] == run.pages[:2]
    a.release(again)
    a.acquire([50] * 9, 12)
    with pytest.raises(PoolFull):
        a.acquire(list(range(9)), 9)


def test_what_follows_a_prefix_is_evicted_before_the_prefix():
    a = allocator(pages=4)
    tokens = list(range(13))
    run = a.acquire(tokens[:12], 12)
    a.remember(run, tokens[:12])
    a.release(run)
    other = a.acquire([50], 1)
    assert other.pages == [run.pages[2]]
    a.release(other)
    assert a.acquire(tokens[:9], 8).shared == 2


def test_least_recently_used_goes_first():
    a = allocator(pages=3)
    old, new = a.acquire([1] * 4, 4), a.acquire([2] * 4, 4)
    a.remember(old, [1] * 4)
    a.remember(new, [2] * 4)
    a.release(old)
    a.release(new)
    a.release(a.acquire([1] * 4 + [0], 4))
    assert a.acquire([9], 1).pages == new.pages


def test_a_full_pool_says_so_and_takes_nothing():
    a = allocator(pages=4)
    first = a.acquire(list(range(9)), 9)
    a.remember(first, list(range(9)))
    a.release(first)
    before = a.available
    with pytest.raises(PoolFull, match=r"2 are shared.*1 of 3 are available.*pool_tokens"):
        a.acquire(list(range(9)), 20)
    assert a.available == before
    assert a.acquire(list(range(9)), 9).shared == 2


def test_pages_given_back_twice_are_refused():
    a = allocator()
    run = a.acquire([1], 1)
    a.release(run)
    with pytest.raises(ValueError, match="already given back"):
        a.release(run)


def test_a_page_given_to_another_request_has_no_valid_entries():
    a = allocator(pages=2)
    run = a.acquire([1] * 4, 4)
    a.mark_summarised(a.stale_blocks(run, 2))
    assert a.stale_blocks(run, 2).size == 0
    before = a.generation(run.pages[0])
    a.release(run)
    other = a.acquire([2] * 4, 4)
    assert other.pages == run.pages
    assert a.generation(other.pages[0]) != before
    assert a.stale_blocks(other, 2).size == 2


def test_entries_of_shared_pages_stay_valid():
    a = allocator()
    run = a.acquire([1] * 8, 8)
    a.mark_summarised(a.stale_blocks(run, 3))
    a.remember(run, [1] * 8)
    a.release(run)
    again = a.acquire([1] * 9, 12)
    assert again.shared == 2
    # Block 3 was the current block of the first request: it was never summarised.
    assert a.stale_blocks(again, 4).tolist() == [run.pages[1] * 2 + 1]


def test_forgetting_frees_what_is_cached():
    a = allocator(pages=3)
    run = a.acquire([1] * 8, 8)
    a.remember(run, [1] * 8)
    a.release(run)
    a.forget()
    assert a.available == 2
    assert a.acquire([1] * 8, 8).shared == 0


def test_pool_blocks_walk_the_pages():
    assert allocator().pool_blocks([5, 2, 7], 5).tolist() == [10, 11, 4, 5, 14]
    assert allocator().pool_blocks([5], 0).tolist() == []


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_page_is_ever_owned_twice(data):
    a = allocator(pages=8, page_size=2, block_size=1)
    live: list[tuple] = []
    contents: dict[int, tuple] = {}
    for _ in range(data.draw(st.integers(1, 25))):
        if live and data.draw(st.booleans()):
            a.release(live.pop(data.draw(st.integers(0, len(live) - 1)))[0])
            continue
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=7))
        try:
            run = a.acquire(tokens, len(tokens) + data.draw(st.integers(0, 3)))
        except PoolFull:
            continue
        for number in range(run.shared):
            assert contents[run.pages[number]] == tuple(tokens[: 2 * number + 2])
        private = run.pages[run.shared :]
        assert not set(private) & {page for other, _ in live for page in other.pages}
        for number in range(run.shared, len(tokens) // 2):
            contents[run.pages[number]] = tuple(tokens[: 2 * number + 2])
        for number in range(max(run.shared, len(tokens) // 2), len(run.pages)):
            contents[run.pages[number]] = ()
        a.remember(run, tokens)
        live.append((run, tokens))
    used = {page for run, _ in live for page in run.pages}
    assert a.available + len(used) == a.capacity
    for run, _ in live:
        a.release(run)
    assert a.available == a.capacity
    assert np.all(a.pool_blocks([0], 2) == [0, 1])
