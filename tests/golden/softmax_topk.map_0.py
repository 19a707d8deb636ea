# flow SoftmaxTopK
# from softmax_topk.py
"""One kernel of an indexer: chunks of blocks in parallel.

row        one (request, KV head); row = request * HEADS + head
finished   blocks before the current one: the size of the block axis; -1 for a padded graph slot
pages      this request's row of the page table
members    blocks in the index set that this sweep is restricted to, its ids without the current block
member     position of a lane within the domain; block: its number in the request; valid: whether it exists
pool_block id of a block in the KV pool: entries are stored by it
CAPACITY   blocks that a row of scratch memory holds; STATE_BLOCKS: the same of a request's state
work       for map kernels: chunks of blocks of all requests, request * CHUNKS + chunk, listed by the plan kernel;
           without LISTED every chunk has a thread block of its own, the first chunks of all requests first
PDL        the kernel is launched while the one before it ends, and waits for it before it reads what that wrote.
           A thread block without work leaves at once, but for one that waits whatever there is: a kernel that has
           ended tells the next one that those before it have
"""

import triton
import triton.language as tl


@triton.jit
def pool_block_of(pages, block, valid, BLOCKS_PER_PAGE: tl.constexpr):
    """Ids in the pool of blocks of a request, 64 bits wide."""
    page = tl.load(pages + block // BLOCKS_PER_PAGE, mask=valid, other=0).to(tl.int64)
    return page * BLOCKS_PER_PAGE + block % BLOCKS_PER_PAGE


@triton.jit
def wait_for_kernel(PDL: tl.constexpr):
    """Waits until the kernel before has written everything, then lets the next one start: its thread blocks find room
    on all multiprocessors alike, not on those alone that the kernel before leaves first."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def finished_blocks(length, BLOCK_SIZE: tl.constexpr):
    return tl.where(length > 0, (length - 1) // BLOCK_SIZE, -1)


@triton.jit
def chunk_of_map_0(
    request, start, finished, page_table, page_stride, slots,
    entry_0,
    input_0,
    stride_0,
    stride_1,
    buffer_0,
    HEADS: tl.constexpr, BLOCKS_PER_PAGE: tl.constexpr, CAPACITY: tl.constexpr, STATE_BLOCKS: tl.constexpr,
    TILE: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    row = request * HEADS + head
    pages = page_table + request.to(tl.int64) * page_stride
    block = start + tl.arange(0, TILE)
    member = block
    valid = block < finished
    pool1 = pool_block_of(pages, block, valid, BLOCKS_PER_PAGE)
    wait_for_kernel(WAIT)
    v3 = tl.load(
        input_0
        + request.to(tl.int64) * stride_0
        + head * 4 * stride_1
        + (tl.arange(0, 16))[:, None] * stride_1
        + (tl.arange(0, 128))[None, :],
        mask=((tl.arange(0, 16))[:, None] < 4),
        other=0.0,
    ).to(tl.float32)
    v2 = tl.load(  # softmax_topk.py:18
        entry_0 + head * 128 + (pool1 * (HEADS * 128))[:, None] + (tl.arange(0, 128))[None, :],
        mask=(valid)[:, None],
        other=0.0,
        eviction_policy="evict_first",
    ).to(tl.float32)
    v4 = tl.dot((v2).to(tl.bfloat16), (tl.permute(v3, (1, 0))).to(tl.bfloat16), out_dtype=tl.float32)  # softmax_topk.py:18
    v5 = (v4 * 0.08838834764831845)  # softmax_topk.py:18
    tl.store(
        buffer_0 + row.to(tl.int64) * 4 * CAPACITY + (block)[:, None] * 4 + (tl.arange(0, 16))[None, :],
        v5,
        mask=(valid)[:, None] & ((tl.arange(0, 16))[None, :] < 4),
    )


@triton.jit
def map_0(
    lengths, page_table, page_stride, slots, work, work_count,
    entry_0,
    input_0,
    stride_0,
    stride_1,
    buffer_0,
    HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCKS_PER_PAGE: tl.constexpr,
    CAPACITY: tl.constexpr, STATE_BLOCKS: tl.constexpr, CHUNKS: tl.constexpr,
    TILE: tl.constexpr, LISTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if LISTED:
        first = tl.program_id(1)
        # Listed chunks are loaded beside their number, not after it: every dependent load costs the same again.
        count = tl.load(work_count)
        packed = tl.load(work + first)
        # Not in the loop: the compiler loads for the first turn of a loop before it enters it.
        if (first == 0) | (first < count):
            wait_for_kernel(PDL)
        for item in range(first, count, tl.num_programs(1)):
            following = item + tl.num_programs(1)
            upcoming = tl.load(work + following, mask=following < count, other=0)
            request = packed // CHUNKS
            start = (packed % CHUNKS) * TILE
            finished = finished_blocks(tl.load(lengths + request), BLOCK_SIZE)
            chunk_of_map_0(
                request, start, finished, page_table, page_stride, slots,
                entry_0,
                input_0,
                stride_0,
                stride_1,
                buffer_0,
                HEADS, BLOCKS_PER_PAGE, CAPACITY, STATE_BLOCKS, TILE, False,
            )  # fmt: skip
            packed = upcoming
    else:
        request = tl.program_id(1)
        start = tl.program_id(2) * TILE
        finished = finished_blocks(tl.load(lengths + request), BLOCK_SIZE)
        if (start == 0) | (start < finished):
            chunk_of_map_0(
                request, start, finished, page_table, page_stride, slots,
                entry_0,
                input_0,
                stride_0,
                stride_1,
                buffer_0,
                HEADS, BLOCKS_PER_PAGE, CAPACITY, STATE_BLOCKS, TILE, PDL,
            )  # fmt: skip
