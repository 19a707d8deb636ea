"""What of the FlashInfer provider can be proven without a GPU: its view, its page lists, its refusals."""

from dataclasses import replace

import pytest
import torch
from attention_cases import make

from vortex.attention.flashinfer import FlashInferProvider, overlapping_pages
from vortex.attention.provider import Features, Unsupported
from vortex.attention.source import load, power_of_two


@pytest.mark.parametrize("layout", ["slots", "halves"])
def test_a_page_of_the_view_is_a_block_of_one_head(layout):
    case = make([100], kv=3, query=3, dim=16, block=8, layout=layout)
    for name in ("k", "v"):
        tensor = case.pool.tensors[name]
        view, step = overlapping_pages(name, tensor, 8)
        for block in (0, 5, tensor.shape[0] // 8 - 1):
            for head in range(3):
                page = view[block * 8 * step + head, :, 0]
                assert torch.equal(page.nan_to_num(), tensor[block * 8 : block * 8 + 8, head].nan_to_num())
        inside = view.shape[0] - 1
        assert inside == (tensor.shape[0] - 8) * step + 2


def test_a_head_major_pool_has_no_such_view():
    case = make([100], layout="heads")
    with pytest.raises(Unsupported, match="pool 'k' as pages"):
        overlapping_pages("k", case.pool.tensors["k"], 16)


def test_page_lists_and_last_pages_are_written_from_the_device():
    case = make([100, 33, 0], query=4, kv=2, block=8, page=16, budget=4)
    planned = [4, 4, 1]
    indptr = torch.tensor([0, 4, 8, 12, 16, 17, 18], dtype=torch.int32)
    indices = torch.full((24,), -7, dtype=torch.int32)
    last, padded = torch.full((6,), -7, dtype=torch.int32), torch.zeros(6, dtype=torch.bool)
    load("pages.py.jinja").translate[2, 3](
        case.selection.ids, case.selection.counts, case.batch.lengths, case.batch.page_table, indptr, indices,
        last, padded, 4, case.batch.page_table.stride(0), 2, KV_HEADS=2, BLOCK=8, PAGE=16, CHUNK=4,
    )  # fmt: skip
    assert last.tolist() == [4, 4, 1, 1, 1, 1]
    assert padded.tolist() == [False] * 4 + [True] * 2
    for row in range(2):
        numbers = case.batch.pool_blocks(row, -(-int(case.batch.lengths[row]) // 8))
        for head in range(2):
            begin = int(indptr[row * 2 + head])
            wanted = numbers[case.selection.ids[row, head].long()] * 8 * 2 + head
            assert indices[begin : begin + planned[row]].tolist() == wanted.tolist()
    assert indices[16:18].tolist() == [0, 0] and (indices[18:] == -7).all()


def test_padded_rows_are_settled_to_zero_and_minus_infinity():
    out, lse = torch.full((2, 3, 16), torch.nan), torch.tensor([[1.0, 2.0, 3.0], [torch.nan] * 3])
    out[0] = 5.0
    load("pages.py.jinja").settle[(2,)](
        out, lse, torch.tensor([False, True]), GROUP=3, GROUP_PAD=power_of_two(3), DIM=16, DIM_PAD=16
    )
    assert (out[0] == 5).all() and not out[1].any()
    assert torch.allclose(lse[0], torch.tensor([1.0, 2.0, 3.0]) * torch.log(torch.tensor(2.0)))
    assert torch.isneginf(lse[1]).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fixed_counts": False}, "counts known on the device alone"),
        ({"lists_dense": False}, "dense rows that list no blocks"),
        ({"q_dtype": torch.float32}, "queries of torch.float32"),
    ],
)
def test_refusals_name_the_reason(change, words, monkeypatch):
    monkeypatch.setattr("vortex.attention.flashinfer.importlib.util.find_spec", lambda name: object())
    able = replace(make([40], dtype=torch.float16).shape, device=torch.device("cuda"))
    reason = FlashInferProvider().refusal(replace(able, **change), Features())
    assert reason is not None and words in reason
    assert FlashInferProvider().refusal(able, Features()) is None


def test_a_missing_feature_is_refused_by_name_and_layer():
    shape = make([40], dtype=torch.float16).shape
    with pytest.raises(
        Unsupported, match=r"layer 7: .*'flashinfer' has no support for a sliding window of 9 tokens"
    ):
        FlashInferProvider().plan(shape, Features(window=9), layer=7)
