# flow SoftmaxTopK
# from softmax_topk.py
"""One kernel of an indexer: one thread block a row.

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
def row_1(
    lengths, page_table, page_stride, slots, work, work_count,
    buffer_0,
    buffer_1,
    buffer_2,
    buffer_3,
    HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCKS_PER_PAGE: tl.constexpr,
    CAPACITY: tl.constexpr, STATE_BLOCKS: tl.constexpr, CHUNKS: tl.constexpr,
    TILE: tl.constexpr, LISTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    request = tl.program_id(1)
    row = request * HEADS + head
    length = tl.load(lengths + request)
    finished = finished_blocks(length, BLOCK_SIZE)
    pages = page_table + request.to(tl.int64) * page_stride
    wait_for_kernel(PDL)
    if length > 0:
        # Sweep 1 of 3
        total4 = tl.full((4,), float("-inf"), tl.float32)
        for start in range(0, finished, TILE):
            member = start + tl.arange(0, TILE)
            block = member
            valid = member < finished
            v1 = tl.load(  # softmax_topk.py:18
                buffer_0
                + row.to(tl.int64) * CAPACITY * 4
                + ((block) * 4)[:, None]
                + (tl.arange(0, 4))[None, :],
                mask=(valid)[:, None],
                other=0.0,
            ).to(tl.float32)
            v2 = tl.where((valid)[:, None], v1, float("-inf"))
            v3 = tl.max(v2, 0)  # softmax_topk.py:18
            total4 = tl.maximum(total4, v3)  # softmax_topk.py:18
        tl.store(buffer_1 + row.to(tl.int64) * 4 + tl.arange(0, 4), total4)
        # What this sweep wrote is read by the next one of the same thread block.
        tl.debug_barrier()
        # Sweep 2 of 3
        v6 = tl.load(buffer_1 + row.to(tl.int64) * 4 + tl.arange(0, 4)).to(tl.float32)  # softmax_topk.py:18
        v7 = (v6 == float("-inf"))  # softmax_topk.py:18
        v8 = tl.where(v7, 0.0, v6)  # softmax_topk.py:18
        total13 = tl.full((4,), 0.0, tl.float32)
        for start in range(0, finished, TILE):
            member = start + tl.arange(0, TILE)
            block = member
            valid = member < finished
            v5 = tl.load(  # softmax_topk.py:18
                buffer_0
                + row.to(tl.int64) * CAPACITY * 4
                + ((block) * 4)[:, None]
                + (tl.arange(0, 4))[None, :],
                mask=(valid)[:, None],
                other=0.0,
            ).to(tl.float32)
            v9 = (v5 - v8[None, :])  # softmax_topk.py:18
            v10 = tl.exp(v9)  # softmax_topk.py:18
            v11 = tl.where((valid)[:, None], v10, 0.0)
            v12 = tl.sum(v11, 0)  # softmax_topk.py:18
            total13 = total13 + v12  # softmax_topk.py:18
        tl.store(buffer_2 + row.to(tl.int64) * 4 + tl.arange(0, 4), total13)
        # What this sweep wrote is read by the next one of the same thread block.
        tl.debug_barrier()
        # Sweep 3 of 3
        v15 = tl.load(buffer_1 + row.to(tl.int64) * 4 + tl.arange(0, 4)).to(tl.float32)  # softmax_topk.py:18
        v16 = (v15 == float("-inf"))  # softmax_topk.py:18
        v17 = tl.where(v16, 0.0, v15)  # softmax_topk.py:18
        v20 = tl.load(buffer_2 + row.to(tl.int64) * 4 + tl.arange(0, 4)).to(tl.float32)  # softmax_topk.py:18
        v21 = (v20 == 0.0)  # softmax_topk.py:18
        v22 = tl.where(v21, 1.0, v20)  # softmax_topk.py:18
        for start in range(0, finished, TILE):
            member = start + tl.arange(0, TILE)
            block = member
            valid = member < finished
            v14 = tl.load(  # softmax_topk.py:18
                buffer_0
                + row.to(tl.int64) * CAPACITY * 4
                + ((block) * 4)[:, None]
                + (tl.arange(0, 4))[None, :],
                mask=(valid)[:, None],
                other=0.0,
            ).to(tl.float32)
            v18 = (v14 - v17[None, :])  # softmax_topk.py:18
            v19 = tl.exp(v18)  # softmax_topk.py:18
            v23 = tl.div_rn(v19, v22[None, :])  # softmax_topk.py:18
            v24 = tl.max(v23, 1)  # softmax_topk.py:19
            tl.store(buffer_3 + row.to(tl.int64) * 1 * CAPACITY + block * 1, v24, mask=valid)
