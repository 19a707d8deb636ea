"""Blocks, rows and page tables as SGLang hands them out: what becomes invalid, reset and copied, and when."""

import os
from types import SimpleNamespace

import pytest
import torch

from vortex.engines.sglang.pages import Pages, launch_snapshot, snapshot
from vortex.engines.sglang.slots import Slots
from vortex.vtensor.batch import Batch, Heads

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

BLOCK, PAGE = 8, 16
HEADS = Heads(4, 2, 16)


class Allocator:
    """Hands out the slots that a test names."""

    def __init__(self):
        self.next = None

    def alloc(self, size):
        return self.next

    alloc_extend = alloc
    alloc_decode = alloc


def watched():
    pages = Pages(torch.ones(16, dtype=torch.int8), BLOCK)
    allocator = Allocator()
    pages.follow(allocator)
    return pages, allocator


@pytest.mark.parametrize("method", ["alloc", "alloc_extend"])
def test_a_block_stays_valid_until_the_next_forward_pass(method):
    pages, allocator = watched()
    allocator.next = torch.tensor([16, 17, 31, 64])
    assert getattr(allocator, method)(4) is allocator.next
    assert pages.valid.all(), "an older step may still mark it"
    pages.apply()
    assert (pages.valid == 0).nonzero()[:, 0].tolist() == [2, 3, 8]


def test_several_allocations_are_cleared_together_and_once():
    pages, allocator = watched()
    for slots in ([0], [40, 41]):
        allocator.next = torch.tensor(slots)
        allocator.alloc(1)
    pages.apply()
    assert (pages.valid == 0).nonzero()[:, 0].tolist() == [0, 5]
    pages.valid.fill_(1)
    pages.apply()
    assert pages.valid.all()


def test_an_allocation_that_failed_or_is_empty():
    pages, allocator = watched()
    assert allocator.alloc(1) is None
    allocator.next = torch.empty(0, dtype=torch.int64)
    allocator.alloc(0)
    pages.apply()
    assert pages.valid.all()


def test_more_allocations_than_are_remembered(monkeypatch):
    monkeypatch.setattr("vortex.engines.sglang.pages.MOST_PENDING", 3)
    pages, allocator = watched()
    allocator.next = torch.tensor([8])
    for _ in range(9):
        allocator.alloc(1)
        assert len(pages.pending) <= 3
    pages.apply()
    assert not pages.valid.any()
    pages.valid.fill_(1)
    pages.apply()
    assert pages.valid.all()


def test_an_allocator_without_these_methods():
    with pytest.raises(AttributeError, match="alloc"):
        Pages(torch.ones(1, dtype=torch.int8), BLOCK).follow(SimpleNamespace())


class Table:
    """Rows of requests, as SGLang counts their generations."""

    def __init__(self, size=6):
        self.req_generation = torch.zeros(size, dtype=torch.int64)
        self.answer = []

    def alloc(self, requests):
        for row in requests:
            self.req_generation[row] += 1
        return self.answer

    def clear(self):
        self.req_generation.zero_()


class Runner:
    def __init__(self):
        self.reset = []

    def reset_slots(self, storage, slots):
        self.reset.append(slots.tolist())


def followed():
    runner, table = Runner(), Table()
    slots = Slots(runner, None, torch.device("cpu"))
    slots.follow(table)
    return slots, runner, table


def hand_out(table, answer, new):
    table.answer = answer
    assert table.alloc(new) is answer


def test_a_row_is_reset_when_it_goes_to_another_request():
    slots, runner, table = followed()
    hand_out(table, [3, 1], [3, 1])
    assert runner.reset == [], "an older step may still write its state"
    slots.apply()
    slots.apply()
    hand_out(table, [3], [3])
    slots.apply()
    assert runner.reset == [[1, 3], [3]]


def test_the_next_chunk_of_a_prompt_keeps_its_row():
    slots, runner, table = followed()
    hand_out(table, [2], [2])
    slots.apply()
    hand_out(table, [2, 4], [4])
    slots.apply()
    assert runner.reset == [[2], [4]]


def test_generations_that_count_from_zero_again():
    slots, runner, table = followed()
    hand_out(table, [2], [2])
    slots.apply()
    table.clear()
    hand_out(table, [2], [2])
    slots.apply()
    assert runner.reset == [[2], [2]]


def test_a_table_that_is_full():
    slots, runner, table = followed()
    table.answer = None
    assert table.alloc([]) is None
    slots.apply()
    assert runner.reset == []


def tables(lengths, rows, pages=6, first_page=1):
    """SGLang's tables for requests whose pages count down from a number that differs by request."""
    held = torch.full((max(rows) + 1, pages * PAGE + 4), -7, dtype=torch.int32)
    for row in rows:
        own = torch.arange(pages, dtype=torch.int32).flip(0) + first_page + row * pages
        held[row, : pages * PAGE] = (own[:, None] * PAGE + torch.arange(PAGE, dtype=torch.int32)).flatten()
    valid = torch.ones((first_page + (max(rows) + 1) * pages) * PAGE // BLOCK, dtype=torch.int8)
    options = {"dtype": torch.int32}
    batch = Batch(
        torch.full((len(rows),), -1, **options), torch.full((len(rows), pages), -1, **options),
        torch.full((len(rows),), -1, **options), PAGE, BLOCK, HEADS,
    )  # fmt: skip
    return held, torch.tensor(rows), torch.tensor(lengths), batch, valid


@pytest.mark.parametrize("copy", [snapshot, launch_snapshot], ids=["torch", "kernel"])
def test_lengths_slots_and_pages_of_a_step(copy):
    lengths, rows = [1, 15, 16, 17, 96, 1], [1, 2, 5, 3, 4, 0]
    held, ids, seq_lens, batch, valid = tables(lengths, rows)
    copy(held, ids, seq_lens, batch, valid)
    assert batch.lengths.tolist() == [1, 15, 16, 17, 96, 0], "row 0 is nobody's"
    assert batch.slots.tolist() == rows
    for row, (length, own) in enumerate(zip(lengths[:5], rows[:5], strict=True)):
        used = -(-length // PAGE)
        assert batch.page_table[row, :used].tolist() == [6 - page + own * 6 for page in range(used)]
        assert (batch.page_table[row, used:] == -1).all(), "nothing is written that is not used"


@pytest.mark.parametrize("copy", [snapshot, launch_snapshot], ids=["torch", "kernel"])
def test_the_block_of_the_newest_token_becomes_invalid(copy):
    lengths, rows = [8, 9, 16, 17, 1], [1, 2, 3, 4, 0]
    held, ids, seq_lens, batch, valid = tables(lengths, rows)
    copy(held, ids, seq_lens, batch, valid)
    current = [int(held[row, length - 1]) // BLOCK for row, length in zip(rows[:4], lengths, strict=False)]
    assert (valid == 0).nonzero()[:, 0].tolist() == sorted(current)


@pytest.mark.parametrize("copy", [snapshot, launch_snapshot], ids=["torch", "kernel"])
def test_pages_above_2_to_the_16_and_more_than_one_program_copies(copy, monkeypatch):
    monkeypatch.setattr("vortex.engines.sglang.pages.PAGES_AT_ONCE", 2)
    held, ids, seq_lens, batch, valid = tables([90], [1], first_page=70_000)
    copy(held, ids, seq_lens.to(torch.int32), batch, valid)
    assert batch.page_table[0].tolist() == [70_011 - page for page in range(6)]
