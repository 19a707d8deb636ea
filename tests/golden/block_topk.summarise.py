# flow BlockTopK
# from block_topk.py
"""pool_block id of a finished block in the KV pool: its entries are stored by it
valid      one byte per pool block: whether its entries are those of the tokens that lie there now
repair     per request: the first finished block that is not valid; later ones may be valid or not

summarise_blocks  after a prefill: the given pool blocks of one layer
summarise_step    at the start of a decode step: what finished in the last step, and pages that came around the
                  backend, for all layers, through tables of the layers' addresses
scan_step         before it: looks for the first block to repair
mark_step         after it: those blocks are valid now
"""

import triton
import triton.language as tl


@triton.jit
def to_bf16(x):
    """Rounded to bf16, ties to even, as fp32."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
    return tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)


@triton.jit
def summarise_one(
    pool_block, head,
    entry_0,
    input_0,
    stride_0,
    stride_1,
    HEADS: tl.constexpr,
):  # fmt: skip
    """forward_cache of one (block, KV head)."""
    v1 = tl.load(  # block_topk.py:15
        input_0
        + head * stride_1
        + (pool_block * (16 * stride_0))
        + (tl.arange(0, 16))[:, None] * stride_0
        + (tl.arange(0, 128))[None, :]
    ).to(tl.float32)
    v2 = tl.sum(v1, 0)  # block_topk.py:15
    v3 = v2 / 16.0  # block_topk.py:15
    tl.store(entry_0 + (pool_block * HEADS + head) * 128 + tl.arange(0, 128), to_bf16(v3))


@triton.jit
def summarise_blocks(
    block_ids,
    entry_0,
    input_0,
    stride_0,
    stride_1,
    HEADS: tl.constexpr,
):  # fmt: skip
    pool_block = tl.load(block_ids + tl.program_id(1)).to(tl.int64)
    summarise_one(pool_block, tl.program_id(0), entry_0, input_0, stride_0, stride_1, HEADS)


@triton.jit
def scan_step(
    lengths, page_table, page_stride, valid, repair,
    BLOCK_SIZE: tl.constexpr, BLOCKS_PER_PAGE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    length = tl.load(lengths + request)
    finished = tl.where(length > 0, (length - 1) // BLOCK_SIZE, 0)
    pages = page_table + request.to(tl.int64) * page_stride
    first = finished
    for start in range(0, finished, TILE):
        block = start + tl.arange(0, TILE)
        inside = block < finished
        page = tl.load(pages + block // BLOCKS_PER_PAGE, mask=inside, other=0).to(tl.int64)
        held = tl.load(valid + page * BLOCKS_PER_PAGE + block % BLOCKS_PER_PAGE, mask=inside, other=1)
        first = tl.minimum(first, tl.min(tl.where(inside & (held == 0), block, finished), 0))
    tl.store(repair + request, first)


@triton.jit
def summarise_step(
    lengths, page_table, page_stride, valid, repair, layer_table,
    stride_0,
    stride_1,
    HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCKS_PER_PAGE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Grid [HEADS * PARTS, requests, layers]; PARTS programs share the blocks of a row."""
    head = tl.program_id(0) % HEADS
    request = tl.program_id(1)
    addresses = layer_table + tl.program_id(2) * 2
    entry_0 = tl.load(addresses + 0).to(tl.pointer_type(tl.bfloat16))
    input_0 = tl.load(addresses + 1).to(tl.pointer_type(tl.bfloat16))
    length = tl.load(lengths + request)
    finished = tl.where(length > 0, (length - 1) // BLOCK_SIZE, 0)
    pages = page_table + request.to(tl.int64) * page_stride
    for block in range(tl.load(repair + request) + tl.program_id(0) // HEADS, finished, PARTS):
        page = tl.load(pages + block // BLOCKS_PER_PAGE).to(tl.int64)
        pool_block = page * BLOCKS_PER_PAGE + block % BLOCKS_PER_PAGE
        if tl.load(valid + pool_block) == 0:
            summarise_one(pool_block, head, entry_0, input_0, stride_0, stride_1, HEADS)


@triton.jit
def mark_step(
    lengths, page_table, page_stride, valid, repair,
    BLOCK_SIZE: tl.constexpr, BLOCKS_PER_PAGE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    length = tl.load(lengths + request)
    finished = tl.where(length > 0, (length - 1) // BLOCK_SIZE, 0)
    pages = page_table + request.to(tl.int64) * page_stride
    for start in range(tl.load(repair + request), finished, TILE):
        block = start + tl.arange(0, TILE)
        inside = block < finished
        page = tl.load(pages + block // BLOCKS_PER_PAGE, mask=inside, other=0).to(tl.int64)
        one = tl.full((TILE,), 1, tl.int8)
        tl.store(valid + page * BLOCKS_PER_PAGE + block % BLOCKS_PER_PAGE, one, mask=inside)
