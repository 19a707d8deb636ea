"""Launches the digit-by-digit selection for long rows whose k best groups hold too much of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vortex.codegen.templates import load_template

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 8192
WARPS = 8
SHIFTS = (24, 16, 8, 0)


class WideRows:
    """Workspace and the 11 launches of select_wide.py.jinja for `rows` rows of up to `capacity` scores."""

    def __init__(self, rows: int, capacity: int, device: Any) -> None:
        import torch

        self.rows = rows
        self.chunks = -(-capacity // CHUNK)
        self.kernels = load_template("select_wide.py.jinja")
        self.prefix, self.left, self.chosen = torch.zeros(3, rows, dtype=torch.int32, device=device)
        self.histograms = torch.empty(rows, self.chunks, 256, dtype=torch.int32, device=device)
        self.winners, self.ties = torch.empty(2, rows, self.chunks, dtype=torch.int32, device=device)

    def run(
        self,
        scores: Tensor,
        budget: tuple[Tensor, Tensor, Tensor | None],
        bound: float,
        outputs: tuple[Any, ...],
        row: dict[str, Any],
        tile: dict[str, Any],
        pages: dict[str, Any],
        frame: int,
    ) -> None:
        """`budget`: finished, take, dense. `outputs`: ids to page_stride as in row_finish.

        row, tile, pages: constants of the kernels that know a row, read a chunk of it, and translate block numbers;
        frame: slots written at a time.
        """
        by_row, by_chunk = (self.rows,), (self.rows, self.chunks)
        tile = {**row, **tile, "LANES": CHUNK, "num_warps": WARPS}
        source = (scores, scores.stride(0), *budget, bound, self.prefix)
        for shift in SHIFTS:
            self.kernels.digit_counts[by_chunk](*source, self.histograms, SHIFT=shift, **tile)
            self.kernels.digit_choose[by_row](
                *budget, self.prefix, self.left, self.chosen, self.histograms, self.chunks, SHIFT=shift, **row
            )
        self.kernels.chunk_tally[by_chunk](*source, self.winners, self.ties, **tile)
        self.kernels.chunk_place[by_chunk](
            *source, self.left, self.winners, self.ties, outputs[0], *outputs[2:],
            CHUNKS=1 << (self.chunks - 1).bit_length(), **tile, **pages,
        )  # fmt: skip
        self.kernels.row_finish[by_row](*budget, self.chosen, *outputs, FRAME=frame, **row, **pages)
