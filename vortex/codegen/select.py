"""Launches the selection kernels: top-k, top-p and threshold over the finished blocks of a batch.

`Selector` is made once per shape and allocates what it needs; `run` launches a fixed sequence of kernels,
reads lengths on the device and can be captured in a CUDA graph (after one `run`, which compiles).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vortex.codegen.select_wide import WideRows
from vortex.codegen.templates import load_template

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["top_k", "top_p", "threshold"]
KINDS: tuple[Kind, ...] = ("top_k", "top_p", "threshold")

# Scores that one thread block keeps in registers: 32 a thread at 1,024 threads, half the register file.
LARGEST_TILE = 32768
EXACT = 1 << 14
ORDER_TILE = 64


class SelectError(ValueError):
    """A selection that cannot be launched as asked; the message names the argument and what it should be."""


@dataclass(frozen=True)
class SelectConfig:
    """What is fixed when a selection is compiled.

    kind             top_k, top_p (the fewest that reach a share) or threshold (scores from a bound on)
    capacity         most finished blocks of any request
    width            slots of an output row, the current block's included; `take` is cut to width - 1
    kv_heads         rows of a request
    block_size       tokens of a block; blocks_per_page: blocks of a pool page
    sinks, recent    first and last finished blocks that are always selected
    recall           None: exact. Otherwise top_k is stochastic: at least this share of the selected
                     candidates is among the k best, the rest is sampled from the scores around the k-th
    dense_at_take    rows whose `take` covers all n blocks list them all, -inf too; None: for top_k
    order            of the candidates in a row: ascending ids, or by score, best first (one more kernel); the
                     reserved blocks come first then
    seed, first_head of the stochastic stream; first_head is the global number of this rank's first KV head
    """

    kind: Kind
    capacity: int
    width: int
    kv_heads: int
    block_size: int = 1
    blocks_per_page: int = 1
    sinks: int = 0
    recent: int = 0
    recall: float | None = None
    dense_at_take: bool | None = None
    order: Literal["ascending", "score"] = "ascending"
    seed: int = 0
    first_head: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SelectError(f"kind: one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.order not in ("ascending", "score"):
            raise SelectError(f"order: ascending or score, got {self.order!r}")
        if self.recall is not None and (self.kind != "top_k" or not 0 < self.recall <= 1):
            raise SelectError(
                f"recall: a share above 0, at most 1, of top_k alone; got {self.recall} for {self.kind}"
            )
        if min(self.sinks, self.recent) < 0 or self.width < self.sinks + self.recent + 1:
            raise SelectError(
                f"width: {self.width} slots do not hold {self.sinks} sinks, {self.recent} recent, 1 current"
            )
        if min(self.capacity, self.kv_heads, self.block_size, self.blocks_per_page) < 1:
            raise SelectError(f"capacity, kv_heads, block_size and blocks_per_page are positive, got {self}")

    @property
    def most_candidates(self) -> int:
        """The largest k of any row."""
        return min(self.width - 1 - self.sinks - self.recent, self.capacity)


@dataclass(frozen=True)
class SelectOutput:
    """Where a selection goes; every tensor is fully overwritten.

    ids          int32 [requests, kv_heads, width]: block numbers, ascending, the current block last, then -1
    counts       int32 [requests, kv_heads]: used slots; 0 for a padded graph slot
    pool_blocks  int32 or int64, as ids: pool block ids, -1 after (optional)
    indices      int32 or int64, as ids: pool_block * block_size * kv_heads + head, FlashInfer's page index on
                 the overlapping view of an engine's pool; 0 after, a page that can be read (optional)
    """

    ids: Tensor
    counts: Tensor
    pool_blocks: Tensor | None = None
    indices: Tensor | None = None

    def check(self, shape: tuple[int, int, int]) -> None:
        for name in ("ids", "counts", "pool_blocks", "indices"):
            tensor = getattr(self, name)
            wanted = shape[:2] if name == "counts" else shape
            if tensor is not None and (tuple(tensor.shape) != wanted or not tensor.is_contiguous()):
                raise SelectError(f"{name}: contiguous {wanted} is expected, got {tuple(tensor.shape)}")


@dataclass(frozen=True)
class Launch:
    """How the kernels are launched.

    warps       of a thread block; probes: keys counted at in a step of the search, even
    registers   most of a thread, so that more thread blocks share a multiprocessor (None: Triton's choice)
    shorten     rows at least this many times as long as what they are shortened to are shortened first
    largest     scores that one thread block takes; longer rows are shortened chunk by chunk before
    chunk       scores of a long row that one thread block shortens, with warps and registers of its own
    """

    warps: int
    probes: int = 8
    registers: int | None = None
    shorten: int = 4
    largest: int = LARGEST_TILE
    chunk: int = 16384
    chunk_warps: int = 16
    chunk_registers: int | None = None


def default_launch(lanes: int, rows: int) -> Launch:
    """Warps for tiles of `lanes` scores; see benchmarks/topk.py, which times the alternatives."""
    for most, warps in ((512, 1), (1024, 2), (4096, 4), (16384, 16)):
        if lanes <= most:
            return Launch(warps)
    return Launch(32)


def _shortened(most: int) -> int:
    """Slots for the lanes kept of a row whose k is at most `most`: k, and as many again for those near the k-th."""
    return max(_power(2 * most), 64)


def _groups(lanes: int, keep: int, warps: int, vector: int) -> int:
    """Groups of lanes whose maxima are searched: enough to tell about k, and a vector a thread, as lanes lie there."""
    return min(max(2 * keep, 32 * max(vector, 4) * warps), lanes)


@dataclass(frozen=True)
class _Level:
    """A stage that turns rows of `length` scores into rows of chunks * keep pairs."""

    length: int
    chunks: int
    keep: int


def _levels(capacity: int, most: int, largest: int, chunk: int) -> list[_Level] | None:
    """Stages until a row fits one tile; None where what is kept of each chunk does not shorten the row."""
    levels: list[_Level] = []
    length = capacity
    while length > largest:
        chunks = -(-length // chunk)
        keep = _shortened(most)
        if chunks * keep > length // 2 and length > LARGEST_TILE:
            return None
        if chunks * keep > length // 2:
            return levels
        levels.append(_Level(length, chunks, keep))
        length = chunks * keep
    return levels


class Selector:
    """A compiled selection for `requests` rows of requests on one device.

    A row of up to 32,768 blocks takes one thread block; with `overlap` it starts while the kernel before it ends
    (sm_90). A longer one is first shortened chunk by chunk, to about the k best of each, as often as needed; where k
    is too large for that, it is selected digit by digit
    (select_wide.py), exactly also for a stochastic configuration. top_p is not offered there: SelectError.
    """

    def __init__(
        self, config: SelectConfig, requests: int, device: Any, launch: Launch | None = None,
        *, overlap: bool = False,
    ) -> None:  # fmt: skip
        import torch

        self.config = config
        self.requests = requests
        self.overlap: dict[str, Any] = {"PDL": overlap} | ({"launch_pdl": True} if overlap else {})
        self.rows = requests * config.kv_heads
        self.kernels = load_template("select.py.jinja")
        self.row = {
            "SINKS": config.sinks, "RECENT": config.recent, "WIDTH": config.width, "HEADS": config.kv_heads,
            "DENSE_AT_TAKE": config.kind == "top_k" if config.dense_at_take is None else config.dense_at_take,
        }  # fmt: skip
        self.blocks = {"BLOCKS_PER_PAGE": config.blocks_per_page, "BLOCK_SIZE": config.block_size}
        tiles = launch or Launch(1)
        levels = _levels(config.capacity, config.most_candidates, tiles.largest, tiles.chunk)
        self.wide = None
        if levels is None:
            if config.kind == "top_p":
                raise SelectError(
                    f"width: top_p of up to {config.width} of {config.capacity} blocks fits no thread block; "
                    "lower its max"
                )
            levels = []
            self.wide = WideRows(self.rows, config.capacity, device)
        self.levels = levels
        length = levels[-1].chunks * levels[-1].keep if levels else config.capacity
        self.lanes = max(1 << (length - 1).bit_length(), 32)
        self.launch = launch or default_launch(self.lanes, self.rows)
        keep = _shortened(config.most_candidates)
        self.keep = keep if self.lanes >= self.launch.shorten * keep and config.kind != "top_p" else 0
        self.kept = [
            (
                torch.empty(self.rows, level.chunks * level.keep, dtype=torch.float32, device=device),
                torch.empty(self.rows, level.chunks * level.keep, dtype=torch.int32, device=device),
            )
            for level in (*levels, _Level(self.lanes, 1, self.keep))
        ]
        shape = (requests, config.kv_heads, config.width)
        self.unordered = (
            torch.empty(shape, dtype=torch.int32, device=device) if config.order == "score" else None
        )
        self.parts = 1 << (levels[0].chunks - 1).bit_length() if levels else 1
        # Parts beyond the chunks stay 0 and count nothing.
        self.weights = (
            torch.zeros(self.rows, 2, self.parts, dtype=torch.float32, device=device)
            if levels and config.kind == "top_p"
            else None
        )

    def run(
        self,
        scores: Tensor,
        finished: Tensor,
        take: Tensor,
        out: SelectOutput,
        *,
        layer: int = 0,
        bound: float = 0.0,
        dense: Tensor | None = None,
        lengths: Tensor | None = None,
        page_table: Tensor | None = None,
    ) -> None:
        """Selects for every row; no host synchronisation, no allocation.

        scores      float32, float16 or bfloat16 [rows, >= capacity], contiguous last axis;
                    row = request * kv_heads + head
        finished    int32 [requests]: n = (length - 1) // block_size, rounded down: -1 for a padded slot
        take        int32 [requests]: blocks to select, reserved ones included and the current one not
        bound       p of top_p, t of threshold
        dense       bool [requests]: rows that list every block
        lengths     int32 [requests]: tokens, for the stochastic stream
        page_table  int32 [requests, pages], for pool_blocks and indices
        """
        config = self.config
        self._check(scores, out, lengths, page_table)
        budget = (finished, take, dense)
        pages = (out.pool_blocks, out.indices, page_table, 0 if page_table is None else page_table.stride(0))
        stream = (config.seed & 0x7FFFFFFF, layer, config.first_head)
        if self.unordered is None:
            self._select(scores, budget, bound, lengths, stream, (out.ids, out.counts, *pages))
            return
        self._select(
            scores, budget, bound, lengths, stream, (self.unordered, out.counts, None, None, None, 0)
        )
        kernel = load_template("select_order.py.jinja").order_rows
        kernel[(self.rows, -(-config.width // ORDER_TILE))](
            scores, scores.stride(0), self.unordered, *budget, out.ids, out.counts, *pages,
            TILE=ORDER_TILE, **self.row, **self.blocks,
        )  # fmt: skip

    def _select(
        self,
        scores: Tensor,
        budget: tuple[Tensor, Tensor, Tensor | None],
        bound: float,
        lengths: Tensor | None,
        stream: tuple[int, int, int],
        outputs: tuple[Any, ...],
    ) -> None:
        """`outputs`: ids, counts, pool_blocks, indices, page_table, its stride."""
        config, launch = self.config, self.launch
        frame = min(_power(config.width), 2048)
        tile = {"ALIGN": _alignment(scores), "KIND": KINDS.index(config.kind)}
        if self.wide is not None:
            self.wide.run(scores, budget, bound, outputs, self.row, tile, self.blocks, frame)
            return
        row = {**self.row, "PROBES": launch.probes, "CHUNKS": self.parts}
        source, blocks = scores, None
        length = config.capacity
        weights = self.weights
        for level, (kept_scores, kept_blocks) in zip(self.levels, self.kept, strict=False):
            self.kernels.select_chunks[(self.rows, level.chunks)](
                source, source.stride(0), length, blocks, *budget, bound,
                kept_scores, kept_blocks, weights,
                LANES=launch.chunk, KEEP=level.keep, FILL=min(level.keep, 2048),
                GROUPS=_groups(launch.chunk, level.keep, launch.chunk_warps, tile["ALIGN"]),
                num_warps=launch.chunk_warps, **_registers(launch.chunk_registers), **row, **tile,
            )  # fmt: skip
            source, blocks, length, weights = kept_scores, kept_blocks, level.chunks * level.keep, None
            tile["ALIGN"] = _alignment(source)
        self.kernels.select_rows[(self.rows,)](
            source, source.stride(0), length, blocks, *self.kept[-1], self.weights, *budget, lengths, *stream, bound,
            *outputs, LANES=self.lanes, KEEP=self.keep,
            GROUPS=_groups(self.lanes, self.keep, launch.warps, tile["ALIGN"]),
            FRAME=frame, STOCHASTIC=config.recall is not None,
            RECALL=math.ceil((config.recall or 1) * EXACT),
            num_warps=launch.warps, **_registers(launch.registers), **self.blocks, **row, **tile, **self.overlap,
        )  # fmt: skip

    def _check(
        self, scores: Tensor, out: SelectOutput, lengths: Tensor | None, page_table: Tensor | None
    ) -> None:
        config = self.config
        if scores.ndim != 2 or scores.shape[0] != self.rows or scores.stride(1) != 1:
            raise SelectError(
                f"scores: [{self.rows}, n] with a contiguous last axis, got {tuple(scores.shape)}"
            )
        if scores.shape[1] < config.capacity:
            raise SelectError(
                f"scores: rows of {scores.shape[1]} hold no {config.capacity} blocks (capacity)"
            )
        if config.recall is not None and lengths is None:
            raise SelectError("lengths: a stochastic selection draws from a stream by length; pass lengths=")
        if page_table is None and (out.pool_blocks is not None or out.indices is not None):
            raise SelectError("page_table: pool_blocks and indices are looked up in it; pass page_table=")
        out.check((self.requests, config.kv_heads, config.width))


def _registers(most: int | None) -> dict[str, int]:
    return {} if most is None else {"maxnreg": most}


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _alignment(scores: Tensor) -> int:
    """Scores of a 16-byte vector, 1 where rows do not start on one."""
    lanes = 16 // scores.element_size()
    aligned = scores.stride(0) % 16 == 0 and scores.data_ptr() % 16 == 0
    return lanes if aligned else 1
