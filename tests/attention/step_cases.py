"""Requests that decode through a `DecodeStep`, and attention by the reference to judge it by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vortex.attention.provider import Features
from vortex.attention.reference import attend
from vortex.attention.step import DecodeStep, StepOptions
from vortex.codegen.compiled import CompiledFlow, Options
from vortex.dsl.ir import Program, Shape
from vortex.dsl.load import trace_file
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.pool import KVPool
from vortex.vtensor.reference import ReferenceRunner
from vortex.vtensor.selection import Selection

ROOT = Path(__file__).parents[2]
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8"}


def program(name: str = "block_topk", layers: int = 2, heads: Heads | None = None, **hyper: Any) -> Program:
    heads = heads or Heads(6, 2, 16)
    shape = Shape(heads.query, heads.kv, heads.dim, layers)
    traced = trace_file(ROOT / "algorithms" / f"{name}.py", hyper, shape)
    assert traced.program is not None, traced.findings
    return traced.program


@dataclass
class Decoding:
    """A step over random pools; `write` sets lengths, pages and queries as an engine does between replays."""

    program: Program
    requests: int
    most: int  # tokens of the longest request
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    per_page: int = 1
    compiled: bool = True
    shortcut: bool = True
    options: StepOptions = field(default_factory=StepOptions)
    sinks: Tensor | None = None  # logit of each query head's sink, where options.features has sinks

    def __post_init__(self) -> None:
        shape, device = self.program.shape, torch.device(self.device)
        self.heads = Heads(shape.query_heads, shape.kv_heads, shape.head_dim)
        self.block = self.program.policy.block_size
        self.page = self.block * self.per_page
        self.width = -(-self.most // self.page)
        self.pages = self.requests * self.width + 1
        kv_dtype = self.kv_dtype or self.dtype
        self.random = torch.Generator().manual_seed(3)
        size = (self.pages * self.page, self.heads.kv, self.heads.dim)
        self.pools = [
            KVPool({name: self.values(size, kv_dtype) for name in ("k", "v")}, self.page)
            for _ in range(shape.layers)
        ]
        options = {"dtype": torch.int32, "device": device}
        self.batch = Batch(
            torch.zeros(self.requests, **options), torch.zeros(self.requests, self.width, **options),
            torch.arange(self.requests, **options), self.page, self.block, self.heads,
        )  # fmt: skip
        memory = {"layers": shape.layers, "pool_blocks": self.pages * self.per_page, "slots": self.requests,
                  "max_blocks": -(-self.most // self.block), "heads": self.heads, "device": device}  # fmt: skip
        self.reference = ReferenceRunner(self.program, shortcut=self.shortcut)
        self.truth = self.reference.allocate(**memory)
        runner = self.reference
        if self.compiled:
            runner = CompiledFlow(self.program, Options(NAMES[kv_dtype]), shortcut=self.shortcut)
        self.q = self.values((shape.layers, self.requests, self.heads.query, self.heads.dim), self.dtype)
        self.out = torch.empty_like(self.q)
        self.write([1] * self.requests)
        memory = runner.allocate(**memory)
        self.step = DecodeStep(runner, memory, self.pools, self.batch, self.dtype, self.options)

    def values(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.randn(tuple(size), generator=self.random).to(dtype).to(self.device)

    def write(self, lengths: Sequence[int]) -> None:
        """Other requests: their lengths, pages in another order, other queries. The last page is nobody's."""
        self.lengths = list(lengths)
        self.batch.lengths.copy_(torch.tensor(lengths))
        order = torch.randperm(self.pages - 1, generator=self.random)[: self.requests * self.width]
        self.batch.page_table.copy_(order.view(self.requests, -1))
        self.q.copy_(self.values(self.q.shape, self.dtype))
        self.out.fill_(torch.nan)

    def decode(self) -> None:
        """What a graph holds."""
        self.step.plan()
        for layer in range(len(self.pools)):
            self.step.run(layer, self.q[layer], self.out[layer], self.sinks)

    def expected(self, layer: int, dense: bool = False) -> tuple[Selection, Tensor, Tensor]:
        """The reference's selection, attention over it in fp64, and in the dtype of q."""
        batch, pool, q = self.batch, self.pools[layer], self.q[layer]
        if dense:
            blocks = -(-batch.lengths // self.block)
            found = Selection(
                torch.full((*self.tally_shape, 1), -1, dtype=torch.int32, device=q.device),
                blocks[:, None].expand(self.tally_shape).contiguous(),
                torch.ones(self.requests, dtype=torch.bool, device=q.device), lists_dense=False,
            )  # fmt: skip
        else:
            blocks = [batch.pool_blocks(row, batch.finished_blocks(row)) for row in range(self.requests)]
            self.reference.dense_below = self.step.dense_below
            self.reference.summarise(self.truth, layer, pool, torch.cat(blocks).unique())
            found = self.reference.select(self.truth, layer, q, pool, batch)
        exact, plain = (
            self.attended(layer, found, compute, self.options.features)
            for compute in (torch.float64, self.dtype)
        )
        return found, exact, plain

    def attended(self, layer: int, found: Selection, compute: torch.dtype, features: Features) -> Tensor:
        sinks = self.sinks if features.sinks else None
        scale = self.heads.dim**-0.5
        return attend(self.q[layer], self.pools[layer], found, self.batch, scale, features, sinks, compute)[0]

    def check_features(self) -> None:
        """`check`, and that what the model asks of attention changes every layer's result."""
        self.check()
        for layer in range(len(self.pools)):
            found, exact, _ = self.expected(layer)
            bare = self.attended(layer, found, torch.float64, Features())
            assert not torch.allclose(exact, bare, atol=1e-2), f"layer {layer}"

    @property
    def tally_shape(self) -> tuple[int, int]:
        return self.requests, self.heads.kv

    def check(self, dense: bool = False) -> None:
        """Every layer's result beside the reference's, within twice the error of plain torch."""
        for layer in range(len(self.pools)):
            _, exact, plain = self.expected(layer, dense)
            ours = self.out[layer]
            assert not ours.isnan().any()
            error = float((plain.double() - exact).abs().max())
            rounding = (torch.finfo(self.dtype).eps / 2 + 8 * 2**-24) * float(exact.abs().max())
            assert float((ours.double() - exact).abs().max()) <= max(2 * error, rounding), f"layer {layer}"
            for row, length in enumerate(self.lengths):
                assert length or not ours[row].any()

    def tokens(self, selection: Selection) -> int:
        """Tokens of K and V, over all KV heads, that a selection reads."""
        total = 0
        for row, length in enumerate(self.lengths):
            for head in range(self.heads.kv if length else 0):
                count = (
                    -(-length // self.block)
                    if bool(selection.dense[row])
                    else int(selection.counts[row, head])
                )
                total += (count - 1) * self.block + (length - 1) % self.block + 1
        return total
