"""Rows of scores and the one way in which the tests of the selection kernels run a selection."""

from __future__ import annotations

import pytest
import torch

from vortex.codegen.select import SelectConfig, Selector, SelectOutput
from vortex.codegen.select_launch import LongLaunch

HEADS = 2
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
KINDS = ["random", "sorted", "reversed", "constant", "bimodal", "heavy tailed", "one coarse bucket",
         "one sign", "outlier", "few values", "denormal"]  # fmt: skip
SMALL_LONG = LongLaunch(
    512, sample=512, tile=512, each=4, guess_warps=1, sift_warps=4, finish_warps=4, bins=256
)
# Of the interpreter: NaN lanes are converted, ranges of equal scores divided by.
QUIET = [
    pytest.mark.filterwarnings(f"ignore:{what} encountered:RuntimeWarning")
    for what in ("invalid value", "divide by zero", "overflow")
]


def size(device: str, small: int, full: int) -> int:
    return full if device == "cuda" else small


def rows_of(kind: str, rows: int, n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(rows, n, generator=generator)
    uniform = torch.rand(rows, n, generator=generator)
    return {
        "random": lambda: normal,
        "sorted": lambda: normal.sort(dim=1).values,
        "reversed": lambda: normal.sort(dim=1, descending=True).values,
        "constant": lambda: torch.full((rows, n), -2.5),
        "bimodal": lambda: torch.where(uniform < 0.03, normal + 100, normal),
        "heavy tailed": lambda: normal.sign() * (3 * normal).exp(),
        "one coarse bucket": lambda: 1 + 0.245 * uniform,
        "one sign": lambda: -uniform - 1e-3,
        "outlier": lambda: normal.index_fill(1, torch.tensor([n // 2]), 1e30),
        "few values": lambda: (normal * 2).round(),
        "denormal": lambda: normal * 1e-42,
    }[kind]()


def select(scores, finished, take, *, kind="top_k", launch=None, pages=None, lengths=None, bound=0.0, layer=0,
           dense=None, **config):  # fmt: skip
    """Runs a selection over outputs full of garbage; returns ids and counts on the host, and the output."""
    device = scores.device
    requests = len(finished)
    width = config.pop("width", max(take) + 1)
    config.setdefault("capacity", scores.shape[1])
    plan = SelectConfig(kind, width=width, kv_heads=HEADS, **config)
    shape = (requests, HEADS, width)
    out = SelectOutput(
        torch.full(shape, 12345, dtype=torch.int32, device=device),
        torch.full(shape[:2], 12345, dtype=torch.int32, device=device),
        None if pages is None else torch.full(shape, 12345, dtype=torch.int32, device=device),
        None if pages is None else torch.full(shape, 12345, dtype=torch.int64, device=device),
    )
    as_int = {"dtype": torch.int32, "device": device}
    Selector(plan, requests, device, launch).run(
        scores, torch.tensor(finished, **as_int), torch.tensor(take, **as_int), out, bound=bound, layer=layer,
        dense=dense, lengths=None if lengths is None else torch.tensor(lengths, **as_int), page_table=pages,
    )  # fmt: skip
    return out.ids.cpu().view(requests * HEADS, width), out.counts.cpu().view(-1), out
