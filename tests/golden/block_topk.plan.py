# flow BlockTopK
# from block_topk.py
"""One thread block plans one request, from its length alone, at the start of a decode step.

finished   blocks before the current one, -1 for a padded graph slot
take       per kind of selection and layer: blocks to select, the current one not counted
dense      per layer: whether every block is attended, whatever is selected
work       chunks of TILE blocks of all requests, request * CHUNKS + chunk; a request's own follow those of the
           requests before it, so that every thread block of a map kernel finds the same amount of work
"""

import triton
import triton.language as tl


@triton.jit
def chunks_of(length, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Chunks of TILE blocks that the finished blocks of a request make."""
    return tl.where(length > 0, ((length - 1) // BLOCK_SIZE + TILE - 1) // TILE, 0)


@triton.jit
def reserved_blocks(finished, SINKS: tl.constexpr, RECENT: tl.constexpr):
    """Sinks and recent blocks without duplicates."""
    return tl.minimum(finished, SINKS + RECENT)


@triton.jit
def list_chunks(work, work_count, request, length, lane, every, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
                CHUNKS: tl.constexpr, FILL: tl.constexpr):  # fmt: skip
    """Writes the chunks of one request behind those of the requests before it."""
    counts = chunks_of(every, BLOCK_SIZE, TILE)
    first = tl.sum(tl.where(lane < request, counts, 0), 0)
    own = chunks_of(length, BLOCK_SIZE, TILE)
    for start in range(0, own, FILL):
        chunk = start + tl.arange(0, FILL)
        tl.store(work + first + chunk, request * CHUNKS + chunk, mask=chunk < own)
    if request == 0:
        tl.store(work_count, tl.sum(counts, 0))


@triton.jit
def plan_step(
    lengths, requests, finished_out, take_out, dense_out,
    work_32, work_count_32,
    BLOCK_SIZE: tl.constexpr, SINKS: tl.constexpr, RECENT: tl.constexpr, DENSE_BELOW: tl.constexpr,
    REQUESTS: tl.constexpr, CAPACITY: tl.constexpr, LAYERS: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    length = tl.load(lengths + request)
    tokens = length.to(tl.int64)
    blocks = (tokens + BLOCK_SIZE - 1) // BLOCK_SIZE
    finished = tl.where(length > 0, (length - 1) // BLOCK_SIZE, -1)
    tl.store(finished_out + request, finished)
    reserved = reserved_blocks(blocks - 1, SINKS, RECENT) + 1
    # budget max(32, 12.5% * blocks)
    budget = ((tl.maximum(256, blocks) + 7) // 8)
    attended = tl.minimum(blocks, tl.maximum(budget, reserved))
    for layer in range(28):
        at = (0 * LAYERS + layer) * requests + request
        tl.store(take_out + at, tl.maximum(attended - 1, 0).to(tl.int32))
        covered = (budget >= blocks) | (length < DENSE_BELOW)
        tl.store(dense_out + layer * requests + request, (covered & (length > 0)).to(tl.int8))
    # budget max(32, 12.5% * blocks)
    budget = ((tl.maximum(256, blocks) + 7) // 8)
    attended = tl.minimum(blocks, tl.maximum(budget, reserved))
    for layer in range(28):
        at = (1 * LAYERS + layer) * requests + request
        tl.store(take_out + at, tl.maximum(attended - 1, 0).to(tl.int32))
    lane = tl.arange(0, REQUESTS)
    every = tl.load(lengths + lane, mask=lane < requests, other=0)
    list_chunks(
        work_32, work_count_32, request, length, lane, every,
        BLOCK_SIZE, 32, (CAPACITY + 31) // 32, FILL,
    )  # fmt: skip
