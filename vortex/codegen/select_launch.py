"""How the selection kernels are launched: the sizes of their tiles, by the length of the rows and their number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

# Lanes that one thread block selects from: 16 a thread at 1,024 threads.
LARGEST_TILE = 16384
# Kept lanes that fit beside the counters into the shared memory of a kernel that asks for none.
LARGEST_KEEP = 2048
LARGEST_BINS = 1024
# Neighbouring scores that one thread takes.
EACH = (1, 2, 4, 8, 16)
# Neighbouring scores of a sample.
PIECE = 16


@dataclass(frozen=True)
class Launch:
    """How rows are launched that one thread block holds.

    warps   of a thread block
    each    neighbouring lanes of a thread: 1 to 16. A thread takes several runs of them where a row is long
    bins    of a histogram, at most 1,024
    keep    lanes that reach the floor and are selected from; 0: no floor, all lanes are selected from
    maxima  groups in a run of lanes whose maxima give the floor
    short   rows of up to so many scores are selected from a tile of as many lanes, those of up to half of it from one
            of half as many, without a floor; 0: none are
    registers  most of a thread, so that more thread blocks share a multiprocessor (None: Triton's choice)
    """

    warps: int
    each: int = 8
    bins: int = 256
    keep: int = 0
    maxima: int = 1
    registers: int | None = None
    short: int = 0

    def __post_init__(self) -> None:
        fits = 32 <= self.bins <= LARGEST_BINS and self.keep <= LARGEST_KEEP
        short = self.short in (0, *(32 * self.warps * each for each in EACH[1:]))
        if self.each not in EACH or not fits or not short:
            raise ValueError(
                f"each: one of {EACH}; bins: 32 to {LARGEST_BINS}; keep: at most {LARGEST_KEEP}; short: 0, or one of "
                f"{EACH[1:]} for each thread; got {self}"
            )

    @property
    def short_each(self) -> int:
        """Neighbouring lanes of a thread in the tile of short rows."""
        return self.short // (32 * self.warps)


@dataclass(frozen=True)
class LongLaunch:
    """How longer rows are launched, several thread blocks each (select_long.py.jinja): tiles of the three kernels.

    sample        scores that the guess is made from
    keep          lanes that are selected from in the end, more than k; 0: rows are selected from tile by tile
    tile, tiles   lanes of a tile of a segment, and tiles of one
    each          neighbouring lanes of a thread that sifts; the other kernels divide their tiles by their threads
    most          lanes of the sample that the guess may be off by
    draws         whether a stochastic selection draws: what is kept is so much that a histogram less is felt
    """

    keep: int
    sample: int = 8192
    guess_warps: int = 16
    most: int = 8
    tile: int = 8192
    tiles: int = 1
    sift_warps: int = 16
    each: int = 16
    finish_warps: int = 16
    bins: int = 512
    draws: bool = True

    def __post_init__(self) -> None:
        # No thread may hold a copy of another's lane: they are counted.
        fits = self.sample >= PIECE * 32 * self.guess_warps and self.tile >= self.each * 32 * self.sift_warps
        lanes = self.keep / (32 * self.finish_warps) if self.keep else 16
        if not fits or lanes not in EACH[1:] or not 256 <= self.bins <= LARGEST_BINS:
            raise ValueError(
                f"sample: {PIECE} or more for each thread that guesses; tile: `each` for each that sifts; keep: 0, or "
                f"2 to 16 for each that finishes; bins: 256 to {LARGEST_BINS}; got {self}"
            )


# (scores of a row, k, rows, launch): the first line that holds a selection; benchmarks/topk.py times the alternatives.
# Where k of g groups have a maximum that reaches the floor, n * (1 - (1 - k / g) ** (g / n)) of n scores without order
# do: `keep` is well above that where g is 1.25 k or more. A row with fewer groups is slow, so it should find room in
# the tile of short ones. Up to FEW_ROWS a multiprocessor has one row, which may take all of its registers, else two.
ANY = 1 << 62
FEW_ROWS = 132
LAUNCHES: tuple[tuple[int, int, int, Launch], ...] = (
    (512, 48, 264, Launch(4, 4, 128)),
    (512, 48, ANY, Launch(2, 8, 64, keep=64)),
    (512, ANY, ANY, Launch(4, 4, 128)),
    (1024, 64, ANY, Launch(4, 8, 128, keep=128)),
    (1024, ANY, ANY, Launch(4, 8, 128)),
    (2048, 128, FEW_ROWS, Launch(8, 8, 256, short=1024)),
    (2048, 128, ANY, Launch(8, 8, 256, keep=256, maxima=2, short=1024)),
    (2048, 256, ANY, Launch(8, 8, 256, keep=512, maxima=2, short=1024)),
    (2048, ANY, ANY, Launch(8, 8, 256, short=1024)),
    (4096, 128, ANY, Launch(8, 16, 256, keep=256, maxima=2, short=2048)),
    (4096, 512, ANY, Launch(8, 16, 256, keep=1024, maxima=4, short=2048)),
    (4096, ANY, ANY, Launch(16, 8, 512, short=2048)),
    (8192, 128, FEW_ROWS, Launch(8, 16, 128, keep=256, maxima=2, registers=168, short=2048)),
    (8192, 128, ANY, Launch(8, 16, 256, keep=256, maxima=2, registers=128, short=2048)),
    (8192, 256, ANY, Launch(8, 16, 256, keep=512, short=2048)),
    (8192, 512, FEW_ROWS, Launch(8, 16, 512, keep=1024, maxima=4, short=2048)),
    (8192, 512, ANY, Launch(8, 16, 256, keep=1024, maxima=2, short=2048)),
    (8192, 1024, ANY, Launch(8, 16, 256, keep=2048, maxima=4, short=2048)),
    (8192, ANY, ANY, Launch(16, 16, 512, short=2048)),
)


AnyLaunch: TypeAlias = Launch | LongLaunch


def power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def default_launch(length: int, most: int, rows: int) -> AnyLaunch:
    """The launch for `rows` rows of up to `length` scores, of which up to `most` are selected."""
    for lanes, largest, many, launch in LAUNCHES:
        if length <= lanes and most <= largest and rows <= many:
            return launch
    return _long(length, most, rows)


def _long(length: int, most: int, rows: int) -> LongLaunch:
    """Keeps up to 4 k: a sample of neighbours that are alike tells less than its size says. Where k is a large part of
    a row, the sample holds many of its best, and 2 k are enough."""
    keep = max(4 * power(most), 1024)
    if keep > LARGEST_TILE or (most > 512 and length <= 16 * power(most)):
        keep = 2 * power(most)
    if keep > LARGEST_TILE:
        return LongLaunch(0)
    aim = (most + keep) // 2
    # 96 scores of the sample above the guess are right to 10%.
    sample = min(max(power(96 * length // aim), 4096), LARGEST_TILE)
    tile = 2048 if length <= 1 << 17 else 4096
    tiles = min(max(length // (16 * tile), 1), 8)
    # Many rows fill the device by themselves: smaller thread blocks lie closer.
    if length > 1 << 16 and 2 * rows > FEW_ROWS:
        tile, tiles = tile // 2, 2 * tiles
    return LongLaunch(
        keep,
        sample=sample,
        guess_warps=sample // (32 * PIECE),
        most=min(max(aim * sample // length // 4, 4), 32),
        tile=tile,
        tiles=tiles,
        sift_warps=max(tile // 512, 4),
        each=min(tile // 128, 16),
        finish_warps=finish_warps(keep),
        draws=most > 512,
    )


def finish_warps(keep: int) -> int:
    """Of the thread block that selects from so many kept lanes."""
    return min(max(keep // 256, 4), 16) if keep <= 8192 else 32


def fitted(launch: Launch, length: int, most: int) -> Launch:
    """The launch with a tile that holds the row, and without a floor where so many maxima or lanes do not exist, or a
    tile of short rows where none are shorter."""
    lanes = max(power(length), 32 * launch.warps * launch.each)
    keeps = launch.keep >= max(most, 32 * launch.warps) and lanes // launch.each * launch.maxima >= most
    shorter = launch.short < length
    return replace(launch, keep=launch.keep if keeps else 0, short=launch.short if shorter else 0)
