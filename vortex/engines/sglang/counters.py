"""What decode steps attended, from the device without waiting for it: to the log and to SGLang's metrics."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from vortex.attention.counters import LayerReads

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reads:
    """Sums since the start. steps: decode steps that were run."""

    steps: int
    layers: tuple[LayerReads, ...]

    @property
    def total(self) -> LayerReads:
        return LayerReads(
            sum(each.sparse for each in self.layers),
            sum(each.dense for each in self.layers),
            sum(each.kv_bytes for each in self.layers),
        )

    def shown(self) -> dict[str, Any]:
        """Plain values, as SGLang's server information carries them."""
        return {"steps": self.steps, **asdict(self.total), "layers": [asdict(each) for each in self.layers]}


class Counters:
    """Counters of one rank.

    totals       int64 [layers, 3], added to inside the graphs: sparse rows, dense rows, tokens of K and V
    token_bytes  K and V of one token of one KV head
    every        decode steps between two reports
    rank         a label of the metrics; metrics: export them
    """

    def __init__(
        self, layers: int, token_bytes: int, device: torch.device, *, every: int, rank: int, metrics: bool
    ) -> None:
        self.totals = torch.zeros(layers, 3, dtype=torch.int64, device=device)
        self.token_bytes = token_bytes
        self.every = every
        self.steps = 0
        self.logged = Reads(0, self._layers(self.totals.cpu()))
        self.host: Tensor | None = None
        self.arrived: Any = None
        self.at = 0
        if device.type == "cuda":
            self.host = torch.zeros(layers, 3, dtype=torch.int64, pin_memory=True)
        self.exported = Metrics(rank) if metrics else None

    def _layers(self, totals: Tensor) -> tuple[LayerReads, ...]:
        return tuple(
            LayerReads(sparse, dense, tokens * self.token_bytes) for sparse, dense, tokens in totals.tolist()
        )

    def read(self) -> Reads:
        """Exact, so far. Waits for the device."""
        return Reads(self.steps, self._layers(self.totals.cpu()))

    def step(self) -> None:
        """A decode step starts. Now and then a copy is begun, and reported when it has arrived."""
        if self.arrived is not None and self.arrived.query():
            assert self.host is not None
            self.arrived = None
            self.report(Reads(self.at, self._layers(self.host)))
        if self.steps and self.steps % self.every == 0 and self.arrived is None:
            if self.host is None:
                self.report(self.read())
            else:
                self.host.copy_(self.totals, non_blocking=True)
                self.at = self.steps
                self.arrived = torch.cuda.Event()
                self.arrived.record()
        self.steps += 1

    def report(self, reads: Reads) -> None:
        """One line on what came since the last one."""
        new, old = reads.total, self.logged.total
        steps = reads.steps - self.logged.steps
        logger.info(
            "vortex: %d decode steps, rows attended sparse %d, dense %d (layers x requests), KV read %.3f GB a step",
            steps, new.sparse - old.sparse, new.dense - old.dense,
            (new.kv_bytes - old.kv_bytes) / max(steps, 1) / 1e9,
        )  # fmt: skip
        if self.exported is not None:
            self.exported.add(self.logged, reads)
        self.logged = reads


class Metrics:
    """Prometheus counters beside SGLang's own, by rank and layer."""

    def __init__(self, rank: int) -> None:
        # SGLang sets the folder of multi-process metrics first: imported no earlier than here.
        from prometheus_client import Counter

        labels = ["tp_rank", "layer"]
        self.rank = str(rank)
        self.rows = Counter(
            "sglang:vortex_decode_rows",
            "Requests attended in decode steps, over a selection (sparse) or in full (dense).",
            [*labels, "path"],
        )
        self.bytes = Counter("sglang:vortex_kv_read_bytes", "K and V that decode attention read.", labels)

    def add(self, old: Reads, new: Reads) -> None:
        for layer, (before, now) in enumerate(zip(old.layers, new.layers, strict=True)):
            for path in ("sparse", "dense"):
                grown = getattr(now, path) - getattr(before, path)
                self.rows.labels(self.rank, str(layer), path).inc(grown)
            self.bytes.labels(self.rank, str(layer)).inc(now.kv_bytes - before.kv_bytes)
