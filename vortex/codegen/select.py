"""Launches the selection kernels: top-k, top-p and threshold over the finished blocks of a batch.

`Selector` is made once per shape and allocates what it needs; `run` launches a fixed sequence of kernels,
reads lengths on the device and can be captured in a CUDA graph (after one `run`, which compiles).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from vortex.codegen.select_wide import WideRows
from vortex.codegen.templates import load_template

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["top_k", "top_p", "threshold"]
KINDS: tuple[Kind, ...] = ("top_k", "top_p", "threshold")

# Scores that one thread block keeps in registers: 32 a thread at 1,024 threads, half the register file.
LARGEST_TILE = 32768
# Maxima of groups that one thread block takes; more have maxima of their own.
LARGEST_TOP = 16384
# Entries, of 8 bytes, that a thread block ranks after a histogram.
LARGEST_KEEP = 8192
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

    warps       of a thread block that selects from a row
    bins        of a histogram; 0: a search in registers by counting at `probes` keys a step (even) instead
    most        lanes of the bucket around the k-th that are ranked by comparing every pair
    vector      rows are read by vectors of 16 bytes; otherwise lane by lane, which saves a way through shared memory
    registers   most of a thread, so that more thread blocks share a multiprocessor (None: Triton's choice)
    largest     scores of a row that are read at once; of longer rows the groups with the largest maxima are
    group       lanes of a group: 4, 8 or 16
    chunk       scores whose maxima one thread block of chunk_warps takes
    """

    warps: int
    bins: int = 64
    most: int = 64
    probes: int = 4
    vector: bool = False
    registers: int | None = None
    largest: int = 8192
    group: int = 8
    chunk: int = 4096
    chunk_warps: int = 4


# (scores of a row, rows, launch): the first line that holds a selection; benchmarks/topk.py times the alternatives.
ANY = 1 << 62
LAUNCHES = (
    (512, 264, Launch(4, 64, 32)),
    (512, ANY, Launch(2, 64, 32)),
    (2048, 264, Launch(8, 128, 64)),
    (2048, ANY, Launch(4, 0, vector=True, probes=2)),
    (4096, ANY, Launch(8, 64, 64)),
    (8192, ANY, Launch(8, 64, 64, largest=4096)),
    (32768, ANY, Launch(8, 64, 64, vector=True)),
    (ANY, ANY, Launch(16, 64, 128, group=4)),
)


def default_launch(length: int, rows: int) -> Launch:
    """The launch for `rows` rows of up to `length` scores."""
    return next(launch for lanes, most, launch in LAUNCHES if length <= lanes and rows <= most)


def _level_lengths(capacity: int, most: int, launch: Launch) -> list[int] | None:
    """Groups of a row, groups of those and so on, until a thread block takes the last; none for a row that is read
    at once, None where a row is too long for that and the k best groups hold too much of it."""
    read = _listed(most, launch.group) * launch.group
    if capacity <= launch.largest or (capacity <= LARGEST_TILE and 2 * read > capacity):
        return []
    if read > LARGEST_TILE or _power(most) > LARGEST_KEEP // 2:
        return None
    lengths = [-(-capacity // launch.group)]
    while lengths[-1] > LARGEST_TOP:
        lengths.append(-(-lengths[-1] // launch.group))
    return lengths


def _listed(most: int, group: int) -> int:
    """Slots for the k best groups; no tile has fewer lanes than a thread block has threads, for histograms' sake."""
    return max(_power(most), 1024 // group)


class Selector:
    """A compiled selection for `requests` rows of requests on one device.

    With `overlap` a kernel starts while the one before it ends (sm_90). A row of up to `Launch.largest` blocks takes
    one thread block. Of a longer one, first the maximum of each group of blocks is taken, then the k best maxima; the k
    best blocks are in their groups. Where k is too large for that, blocks are selected digit by digit (select_wide.py),
    exactly also for a stochastic configuration; top_p is not offered there: SelectError. A stochastic selection from a
    long row samples among the blocks of the k best groups.
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
        shape = (requests, config.kv_heads, config.width)
        self.unordered = (
            torch.empty(shape, dtype=torch.int32, device=device) if config.order == "score" else None
        )
        most = config.most_candidates
        chosen = launch or default_launch(config.capacity, self.rows)
        lengths = _level_lengths(config.capacity, most, chosen)
        self.wide = None
        if lengths is None:
            if config.kind == "top_p":
                raise SelectError(
                    f"width: top_p of up to {config.width} of {config.capacity} blocks fits no thread block; "
                    "lower its max"
                )
            self.wide = WideRows(self.rows, config.capacity, device)
            return
        if lengths and not chosen.bins:
            raise SelectError(f"launch: a search (bins=0) takes rows of up to {chosen.largest}; give bins")
        self.lengths = lengths
        self.top = max(_power(lengths[-1]), 1024) if lengths else 0
        self.listed = _listed(most, chosen.group)
        self.lanes = (
            self.listed * chosen.group if lengths else max(_power(config.capacity), 32 * chosen.warps)
        )
        # At most 32 scores a thread, where the launch is ours.
        warps = max(chosen.warps, max(self.lanes, self.top) // 1024)
        self.launch = launch or replace(chosen, warps=min(warps, 32))
        self.keep = _power(most + self.launch.most)
        self.bins = self.launch.bins if lengths or self.keep <= min(self.lanes, LARGEST_KEEP) else 0
        # Rows start on 16 bytes.
        self.maxima = [
            torch.empty(self.rows, -(-length // 16) * 16, dtype=torch.float32, device=device)
            for length in lengths
        ]
        self.groups = [torch.empty(self.rows, self.listed, dtype=torch.int32, device=device) for _ in lengths]
        self.kept = (
            torch.empty(self.rows, self.keep + self.launch.most, dtype=torch.int64, device=device)
            if self.bins
            else None
        )
        self.parts = _power(-(-config.capacity // self.launch.chunk))
        # Parts beyond the chunks stay 0 and count nothing.
        self.weights = (
            torch.zeros(self.rows, 2, self.parts, dtype=torch.float32, device=device)
            if lengths and config.kind == "top_p"
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
        config = self.config
        frame = min(_power(config.width), 2048)
        align = _alignment(scores)
        tile = {"ALIGN": align, "KIND": KINDS.index(config.kind)}
        if self.wide is not None:
            self.wide.run(scores, budget, bound, outputs, self.row, tile, self.blocks, frame)
            return
        launch = self.launch
        source, listed = self._group(scores, budget, bound, align, tile["KIND"])
        if not launch.vector:
            tile["ALIGN"] = 1
        maxima = (
            () if not self.lengths else (source, source.stride(0), self.lengths[0], listed, self.groups[0])
        )
        self.kernels.select_rows[(self.rows,)](
            scores, scores.stride(0), config.capacity, *(maxima or (None, 0, 0, None, None)), self.kept,
            self.weights, *budget, lengths, *stream, bound, *outputs,
            LANES=self.lanes, MAXIMA=self.listed * launch.group if listed is not None else self.top, FRAME=frame,
            PARTS=self.parts, PROBES=launch.probes, STOCHASTIC=config.recall is not None,
            RECALL=math.ceil((config.recall or 1) * EXACT),
            num_warps=launch.warps, **_registers(launch.registers), **self._tiles(), **self.row, **self.blocks,
            **tile, **self.overlap,
        )  # fmt: skip

    def _tiles(self) -> dict[str, int]:
        return {
            "GROUP": self.launch.group, "LISTED": self.listed, "KEEP": self.keep, "MOST": self.launch.most,
            "BINS": self.bins,
        }  # fmt: skip

    def _group(self, scores: Tensor, budget: Any, bound: float, align: int, kind: int) -> tuple[Tensor, Any]:
        """Takes the maxima of long rows; returns the first level's and which groups of them to read (None: all)."""
        launch, source, length, listed = self.launch, scores, self.config.capacity, None
        for level, (maxima, groups) in enumerate(zip(self.maxima, self.lengths, strict=True)):
            self.kernels.group_maxima[(self.rows, -(-length // launch.chunk))](
                source, source.stride(0), length, *budget, bound, maxima, maxima.stride(0),
                None if level else self.weights, LANES=launch.chunk, GROUP=launch.group, ALIGN=align,
                OF_MAXIMA=level > 0, PARTS=self.parts, KIND=0 if level else kind, num_warps=launch.chunk_warps,
                **self.row, **self.overlap,
            )  # fmt: skip
            source, length, align = maxima, groups, 4
        for level in range(len(self.lengths) - 1, 0, -1):
            maxima = self.maxima[level]
            self.kernels.select_groups[(self.rows,)](
                maxima, maxima.stride(0), self.lengths[level], listed, *budget, self.kept, self.groups[level],
                LANES=self.top if listed is None else self.listed * launch.group,
                ALIGN=4 if launch.vector else 1, num_warps=launch.warps,
                **self._tiles(), **self.row, **self.overlap,
            )  # fmt: skip
            listed = self.groups[level]
        return (self.maxima or [scores])[0], listed

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
