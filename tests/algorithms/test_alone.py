"""A batch of ragged requests that share pages gives, bit for bit, what each gives alone and contiguously."""

import pytest
import torch

from tests.algorithms.decode import LAYER, Decode
from tests.oracles import ORACLES

BLOCK = 8
STARTS = [2 * BLOCK, 6 * BLOCK + 3, 19 * BLOCK - 1]


def alone(together: Decode, row: int) -> Decode:
    """The same request by itself: pages in order, one slot."""
    one = Decode(together.stem, BLOCK, together.group, [together.starts[row]], steps=together.steps)
    one.runner = together.runner
    one.table = torch.arange(one.table.numel(), dtype=torch.int32).reshape(one.table.shape)
    one.tokens = {name: tokens[row : row + 1] for name, tokens in together.tokens.items()}
    one.queries = together.queries[:, row : row + 1]
    return one


def entries(decode: Decode, row: int) -> dict[str, torch.Tensor]:
    """What is stored of a request's finished blocks, in their order."""
    pages = decode.table[row].long()[:, None] * decode.page_blocks + torch.arange(decode.page_blocks)
    ids = pages.flatten()[: decode.summarised[row]]
    return {name: each.data[ids] for name, each in decode.storage.entries[LAYER].items()}


@pytest.mark.parametrize("stem", sorted(ORACLES))
def test_batched_and_paged_equals_alone_and_contiguous(stem):
    together = Decode(stem, BLOCK, 3, STARTS, steps=2)
    together.table[1:, 0] = together.table[0, 0]
    for tokens in together.tokens.values():
        tokens[1:, : together.page] = tokens[0, : together.page]
    attended = [ids for _, _, ids in together.run()]
    for row in range(len(STARTS)):
        one = alone(together, row)
        by_itself = [ids for _, _, ids in one.run()]
        heads = together.heads.kv
        mine = [
            attended[(step * len(STARTS) + row) * heads + head] for step in range(2) for head in range(heads)
        ]
        assert by_itself == mine
        for name, stored in entries(one, 0).items():
            assert torch.equal(stored, entries(together, row)[name])
