"""A batch, a pool and a layout refuse what contradicts itself."""

import pytest
import torch

from vortex.vtensor.batch import Batch, BatchError, Heads
from vortex.vtensor.layout import Layout, VTensor
from vortex.vtensor.pool import KVPool

HEADS = Heads(6, 2, 4)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def batch(**changes):
    fields = {
        "lengths": int32(9, 16, 0), "page_table": int32([3, 1], [0, 2], [-1, -1]), "slots": int32(0, 1, 0),
        "page_size": 8, "block_size": 4, "heads": HEADS,
    }  # fmt: skip
    return Batch(**{**fields, **changes})


def test_a_padded_slot_may_hold_anything():
    batch().check_values(pages=4, slots=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": torch.tensor([9, 16, 0])}, "lengths: int32 is expected, got torch.int64"),
        ({"page_table": torch.zeros(3, 2)}, "page_table: int32 is expected, got torch.float32"),
        ({"slots": torch.tensor([0, 1, 0])}, "slots: int32 is expected"),
        ({"page_table": int32(3, 1, 0)}, "page_table: 2 axes are expected, got shape \\(3,\\)"),
        ({"lengths": int32([9, 16, 0])}, "lengths: 1 axes are expected"),
        ({"slots": int32(0, 1)}, "slots: 2 rows for 3 requests"),
        ({"page_table": int32([3, 1])}, "page_table: 1 rows for 3 requests"),
        ({"block_size": 3}, "block_size: a power of two is expected, got 3"),
        ({"block_size": 0}, "block_size: a power of two"),
        ({"page_size": 6}, "page_size: 6 is no multiple of block_size 4"),
        ({"page_size": 2}, "page_size: 2 is no multiple"),
    ],
)
def test_refused_on_construction(changes, message):
    with pytest.raises(BatchError, match=message):
        batch(**changes)


@pytest.mark.parametrize(
    ("changes", "limits", "message"),
    [
        ({"lengths": int32(9, 17, 0)}, {}, "request 1 of 17 tokens needs 3 pages, the table holds 2"),
        ({"lengths": int32(9, -1, 0)}, {}, "lengths: request 1 has -1 tokens"),
        ({"page_table": int32([3, -1], [0, 2], [0, 0])}, {}, "request 0 has page -1 among its first 2"),
        ({}, {"pages": 3}, "request 0 has page 3 of 3 among its first 2"),
        ({"page_table": int32([3, 3], [0, 2], [0, 0])}, {}, "request 0 has one page twice among its first 2"),
        ({"slots": int32(1, 1, 0)}, {}, "requests 0 and 1 share state slot 1"),
        ({"slots": int32(-1, 1, 0)}, {}, "request 0 has state slot -1"),
        ({}, {"slots": 1}, "request 1 has state slot 1 of 1"),
    ],
)
def test_refused_when_values_are_checked(changes, limits, message):
    with pytest.raises(BatchError, match=message):
        batch(**changes).check_values(**limits)


def test_lengths_decide_which_pages_count_not_how_many_are_owned():
    batch(lengths=int32(8, 16, 0), page_table=int32([3, -7], [0, 2], [9, 9])).check_values(pages=4)


@pytest.mark.parametrize("heads", [(6, 4, 8), (0, 1, 8), (4, 2, 0)])
def test_heads_refuse_groups_that_do_not_divide(heads):
    with pytest.raises(BatchError, match="heads"):
        Heads(*heads)


def test_pool_blocks_of_pages_that_hold_several():
    b = batch(page_table=int32([70_000, 5], [0, 2], [0, 0]))
    assert b.pool_blocks(0, 3).tolist() == [140_000, 140_001, 10]
    assert b.pool_blocks(0, 0).tolist() == []
    assert [b.finished_blocks(row) for row in range(3)] == [2, 3, 0]


def test_pool_honours_strides_of_interleaved_halves():
    both = torch.randn(32, 2, 2 * 4)
    pool = KVPool({"k": both[..., :4], "v": both[..., 4:]}, 8)
    read = pool.blocks("v", torch.tensor([2, 0]), 4)
    assert read.shape == (2, 4, 2, 4)
    assert torch.equal(read[0], both[8:12, :, 4:])
    assert torch.equal(pool.blocks("k", torch.tensor([2, 0]), 4, 1)[1], both[:4, 1, :4])


@pytest.mark.parametrize(
    ("tensors", "more", "message"),
    [
        ({"k": torch.zeros(8, 4)}, {}, "pool 'k': \\[slots, heads, width\\] is expected"),
        ({"k": torch.zeros(8, 4, 2).mT}, {}, "pool 'k': the last axis is not contiguous"),
        ({"k": torch.zeros(8, 1, 4), "v": torch.zeros(4, 1, 4)}, {}, "same number of slots"),
        ({}, {}, "at least one tensor"),
        ({"k": torch.zeros(8, 1, 4)}, {"page_size": 0}, "page_size is positive"),
        ({"k": torch.zeros(8, 1, 4)}, {"scales": {"q": 2.0}}, "a scale for 'q', but the tensors are k"),
    ],
)
def test_pool_refuses(tensors, more, message):
    with pytest.raises(BatchError, match=message):
        KVPool(tensors, **{"page_size": 4, **more})


def test_layouts_give_a_flow_the_part_of_one_request():
    data = torch.arange(5 * 2 * 3).reshape(5, 2, 3)
    paged = VTensor(data, Layout.PAGED, ("dim",))
    assert torch.equal(paged.request(0, torch.tensor([4, 1])), data[[4, 1]].movedim(1, 0))
    ragged = VTensor(data, Layout.RAGGED, ("dim",), indptr=int32(0, 2, 2, 5))
    assert torch.equal(ragged.request(2), data[2:].movedim(1, 0))
    assert ragged.request(1).shape == (2, 0, 3)
    assert torch.equal(VTensor(data, Layout.DENSE, ("dim",)).request(3), data[3])
    state = VTensor(data[None], Layout.STATE, ("block", "dim"))
    assert state.request(0).shape == (5, 2, 3)


def test_layouts_refuse():
    data = torch.zeros(5, 2, 3)
    with pytest.raises(ValueError, match="indptr belongs to ragged tensors"):
        VTensor(data, Layout.RAGGED, ("dim",))
    with pytest.raises(ValueError, match="indptr belongs to ragged tensors"):
        VTensor(data, Layout.PAGED, ("dim",), indptr=int32(0, 5))
    with pytest.raises(ValueError, match="indptr is int32"):
        VTensor(data, Layout.RAGGED, ("dim",), indptr=torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="does not have the axes"):
        VTensor(data, Layout.PAGED, ("token", "dim"))
    with pytest.raises(ValueError, match="ids of the request's blocks"):
        VTensor(data, Layout.PAGED, ("dim",)).request(0)
