"""Made-up rows for benchmarks/topk.py, and whether what was selected from them is right."""

from __future__ import annotations

from typing import Any

HEADS = 8
INPUTS = 4
DEVICE = "cuda"


class Problem:
    """Scores, tables and outputs of one point of the grid."""

    def __init__(self, rows: int, n: int, k: int, kind: str = "normal", inputs: int = INPUTS) -> None:
        import torch

        self.rows, self.n, self.k = rows, n, k
        self.requests = rows // HEADS
        generator = torch.Generator(device=DEVICE).manual_seed(rows + n + k)
        self.scores = [scores_of(kind, rows, n, generator) for _ in range(inputs)]
        self.page_table = torch.stack(
            [torch.randperm(n, generator=generator, device=DEVICE) for _ in range(self.requests)]
        )
        self.page_table = self.page_table.to(torch.int32)
        self.finished = torch.full((self.requests,), n, dtype=torch.int32, device=DEVICE)
        self.take = torch.full((self.requests,), k, dtype=torch.int32, device=DEVICE)
        # The current block needs a page too; its entry is read but not part of the comparison.
        self.table_and_current = torch.cat([self.page_table, self.page_table[:, :1]], dim=1).contiguous()

    def selector(self, launch: Any = None, recall: float | None = None) -> list[Any]:
        """One call per input; output buffers are kept on the problem as `outputs`."""
        import torch

        from vortex.codegen.select import SelectConfig, Selector, SelectOutput

        config = SelectConfig("top_k", self.n, self.k + 1, HEADS, recall=recall, seed=1)
        selector = Selector(config, self.requests, DEVICE, launch, overlap=True)
        shape = (self.requests, HEADS, self.k + 1)
        self.outputs = [
            SelectOutput(
                torch.empty(shape, dtype=torch.int32, device=DEVICE),
                torch.empty(shape[:2], dtype=torch.int32, device=DEVICE),
                torch.empty(shape, dtype=torch.int32, device=DEVICE),
            )
            for _ in self.scores
        ]
        tables: dict[str, Any] = {"lengths": self.finished, "page_table": self.table_and_current}
        return [
            lambda scores=scores, out=out: selector.run(scores, self.finished, self.take, out, **tables)
            for scores, out in zip(self.scores, self.outputs, strict=True)
        ]

    def samples(self, recall: float) -> bool:
        """Whether stochastic top-k draws anything here; otherwise it runs the exact kernel."""
        from vortex.codegen.select import SelectConfig, Selector

        config = SelectConfig("top_k", self.n, self.k + 1, HEADS, recall=recall)
        return Selector(config, self.requests, DEVICE).samples

    def check(self, recall: float) -> float:
        """The worst row's share of winners; raises where ids, order, pages or (recall 1) values are wrong."""
        worst = 1.0
        for scores, out in zip(self.scores, self.outputs, strict=True):
            ids = out.ids.view(self.rows, -1)[:, : self.k].long()
            assert bool((out.counts == self.k + 1).all()), "counts"
            assert bool((ids[:, 1:] > ids[:, :-1]).all()) and bool((ids >= 0).all()), "ids ascend and differ"
            assert out.pool_blocks is not None
            table = self.page_table.repeat_interleave(HEADS, 0).long()
            assert bool((table.gather(1, ids) == out.pool_blocks.view(self.rows, -1)[:, : self.k]).all()), (
                "pages"
            )
            best = scores.topk(self.k).values
            values = scores.gather(1, ids)
            hits = (values >= best[:, -1:]).sum(1).min().item() / self.k
            worst = min(worst, hits)
            assert hits >= recall, f"recall {hits} below {recall}"
            if recall == 1:
                assert bool((values.sort(descending=True).values == best).all()), (
                    "values differ from torch.topk"
                )
        return worst


def scores_of(kind: str, rows: int, n: int, generator: Any) -> Any:
    import torch

    normal = torch.randn(rows, n, generator=generator, device=DEVICE)
    if kind == "uniform":
        return torch.rand(rows, n, generator=generator, device=DEVICE)
    if kind == "one bucket":
        return 1 + 0.245 * torch.rand(rows, n, generator=generator, device=DEVICE)
    if kind == "heavy tail":
        return normal.exp().pow(5)
    if kind == "outlier":
        normal[:, 7] = 1e30
    if kind == "ties":
        return normal.mul(4).round()
    if kind == "bf16 values":
        return normal.bfloat16().float()
    return normal
