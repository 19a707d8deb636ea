"""Launches the selection kernels: top-k, top-p and threshold over the finished blocks of a batch.

`Selector` is made once per shape and allocates what it needs; `run` launches a fixed sequence of kernels,
reads lengths on the device and can be captured in a CUDA graph (after one `run`, which compiles).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vortex.codegen.select_launch import (
    LARGEST_TILE,
    PIECE,
    AnyLaunch,
    LongLaunch,
    default_launch,
    fitted,
    power,
)
from vortex.codegen.templates import load_template

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["top_k", "top_p", "threshold"]
KINDS: tuple[Kind, ...] = ("top_k", "top_p", "threshold")

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
                     where many are left and that saves time (`LongLaunch.draws`). Other rows are selected
                     exactly, which takes as long
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


class Selector:
    """A compiled selection for `requests` rows of requests on one device.

    With `overlap` a kernel starts while the one before it ends (sm_90). A row of up to 8,192 blocks takes one thread
    block and one launch, a longer one three launches and several thread blocks (select_long.py.jinja); what a launch
    guesses or keeps changes how long it takes, never what is selected. Where no thread block holds what top_p may
    select: SelectError.
    """

    def __init__(
        self, config: SelectConfig, requests: int, device: Any, launch: AnyLaunch | None = None,
        *, overlap: bool = False,
    ) -> None:  # fmt: skip
        import torch

        self.config = config
        self.requests = requests
        self.overlap: dict[str, Any] = {"PDL": overlap} | ({"launch_pdl": True} if overlap else {})
        self.rows = requests * config.kv_heads
        self.row = {
            "SINKS": config.sinks, "RECENT": config.recent, "WIDTH": config.width, "HEADS": config.kv_heads,
            "DENSE_AT_TAKE": config.kind == "top_k" if config.dense_at_take is None else config.dense_at_take,
        }  # fmt: skip
        self.kind = {"KIND": KINDS.index(config.kind)}
        self.blocks = {"BLOCKS_PER_PAGE": config.blocks_per_page, "BLOCK_SIZE": config.block_size}
        shape = (requests, config.kv_heads, config.width)
        self.unordered = (
            torch.empty(shape, dtype=torch.int32, device=device) if config.order == "score" else None
        )
        most = config.most_candidates
        self.launch = launch or default_launch(config.capacity, most, self.rows)
        # Whether anything is drawn: other rows are selected exactly, which takes as long.
        drawn = isinstance(self.launch, LongLaunch) and self.launch.draws
        self.samples = config.recall is not None and drawn
        self.draw = {
            "STOCHASTIC": self.samples,
            "RECALL": math.ceil((config.recall or 1) * EXACT),
            "FRAME": min(power(config.width), 2048),
        }
        self.long: LongRows | None = None
        if isinstance(self.launch, LongLaunch):
            if config.kind == "top_p" and not self.launch.keep:
                raise SelectError(
                    f"width: top_p of up to {config.width} of {config.capacity} blocks fits no thread block; "
                    "lower its max"
                )
            self.long = LongRows(self.launch, self.rows, config.capacity, device)
            return
        if config.capacity > LARGEST_TILE:
            raise SelectError(f"launch: {config.capacity} blocks fit no thread block; give a LongLaunch")
        self.launch = fitted(self.launch, config.capacity, most)

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
        align = _alignment(scores)
        stream_of = (lengths, *stream)
        if self.long is not None:
            row = self.row | self.kind | self.overlap
            self.long.run(scores, budget, bound, stream_of, outputs, row, self.draw | self.blocks, align)
            return
        assert not isinstance(self.launch, LongLaunch)
        row = (
            self.row | self.kind | self.blocks | self.overlap | {"FRAME": self.draw["FRAME"], "ALIGN": align}
        )
        launch = self.launch
        threads = 32 * launch.warps
        limit = {} if launch.registers is None else {"maxnreg": launch.registers}
        lanes = max(power(self.config.capacity), threads * launch.each)
        # Runs of lanes that are not read by vectors lie in several threads, and so do their maxima.
        keep = launch.keep if align > 1 else 0
        load_template("select.py.jinja").select_rows[(self.rows,)](
            scores, scores.stride(0), self.config.capacity, *budget, bound, *outputs,
            THREADS=lanes // launch.each, EACH=launch.each, BINS=launch.bins, KEEP=keep, MAXIMA=launch.maxima,
            SHORT=launch.short, SHORT_EACH=launch.short_each, num_warps=launch.warps, **limit, **row,
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


class LongRows:
    """Workspace and launches of select_long.py.jinja for `rows` rows of up to `capacity` scores."""

    def __init__(self, launch: LongLaunch, rows: int, capacity: int, device: Any) -> None:
        import torch

        self.launch = launch
        self.rows = rows
        self.segments = -(-capacity // (launch.tile * launch.tiles))
        # No segment keeps more than its lanes.
        self.room = min(launch.keep, power(launch.tile * launch.tiles))
        self.guesses = torch.empty(rows, dtype=torch.float32, device=device)
        self.kept = torch.empty(rows * self.segments * self.room, dtype=torch.int64, device=device)
        self.kept_counts = torch.empty(rows * self.segments, dtype=torch.int32, device=device)
        self.shares = torch.empty(rows * self.segments, 2, dtype=torch.float32, device=device)
        self.kernels = load_template("select_long.py.jinja")

    def run(
        self,
        scores: Tensor,
        budget: tuple[Tensor, Tensor, Tensor | None],
        bound: float,
        stream: tuple[Any, ...],
        outputs: tuple[Any, ...],
        row: dict[str, Any],
        write: dict[str, Any],
        align: int,
    ) -> None:
        """`budget`: finished, take, dense. `stream`: lengths, seed, layer, first_head. `outputs`: ids to page_stride.

        row, write: constants of the kernels that know a row, and of the one that writes it.
        """
        launch = self.launch
        kept = (self.guesses, self.kept, self.kept_counts, self.shares)
        source = (scores, scores.stride(0), *budget)
        if launch.keep:
            self.kernels.guess_rows[(self.rows,)](
                *source, bound, self.guesses, PIECES=launch.sample // PIECE, PIECE=PIECE, ALIGN=align, BINS=launch.bins,
                MOST=launch.most, KEEP=launch.keep, num_warps=launch.guess_warps, **row,
            )  # fmt: skip
            self.kernels.sift_rows[(self.rows, self.segments)](
                *source, bound, *kept, THREADS=launch.tile // launch.each, EACH=launch.each, TILES=launch.tiles,
                ALIGN=align, ROOM=self.room, num_warps=launch.sift_warps, **row,
            )  # fmt: skip
        threads = 32 * launch.finish_warps
        each = launch.keep // threads if launch.keep else 16
        self.kernels.finish_rows[(self.rows,)](
            *source, *stream, bound, *kept, *outputs, THREADS=threads, EACH=each, ALIGN=align, BINS=launch.bins,
            KEEP=launch.keep, ROOM=self.room, SEGMENTS=self.segments, num_warps=launch.finish_warps, **row, **write,
        )  # fmt: skip


def _alignment(scores: Tensor) -> int:
    """Scores of a 16-byte vector, 1 where rows do not start on one."""
    lanes = 16 // scores.element_size()
    aligned = scores.stride(0) % 16 == 0 and scores.data_ptr() % 16 == 0
    return lanes if aligned else 1
