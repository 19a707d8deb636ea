"""Times the selection of BlockTopK and Quest on one GPU: scoring kernel, top-k kernel, both; a sweep of schedules.

Method: one CUDA graph holds the same call for 12 layers, each with entries of its own, replayed 20 times between
events; the median is divided by 12. Scores and selections are checked against torch before anything is timed.

    python benchmarks/scoring.py --out DIR [--commit HASH] [--sweep]
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import torch

from vortex.codegen.compiled import CompiledFlow
from vortex.codegen.schedule import Schedule
from vortex.codegen.timing import copy_bandwidth, time_in_graph
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_file
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.pool import KVPool

LAYERS, REQUESTS, LENGTH, BLOCK, BUDGET = 12, 16, 32768, 16, 126
HEADS = Heads(32, 8, 128)
ROOT = Path(__file__).parent.parent


class Case:
    """One flow over random entries at the shape of the measurements: 16 requests of 32,768 tokens."""

    def __init__(self, name: str, schedules: dict[int, Schedule] | None = None) -> None:
        traced = trace_file(ROOT / "algorithms" / f"{name}.py", {"budget": BUDGET}, Shape(32, 8, 128, LAYERS))
        assert traced.program is not None, traced.findings
        self.flow = CompiledFlow(traced.program, schedules=schedules)
        device = torch.device("cuda")
        blocks = REQUESTS * LENGTH // BLOCK
        generator = torch.Generator(device).manual_seed(0)
        order = torch.randperm(blocks, generator=generator, device=device, dtype=torch.int32)
        self.batch = Batch(
            torch.full((REQUESTS,), LENGTH, dtype=torch.int32, device=device),
            order.view(REQUESTS, -1), torch.arange(REQUESTS, dtype=torch.int32, device=device), BLOCK, BLOCK, HEADS,
        )  # fmt: skip
        self.storage = self.flow.allocate(
            layers=LAYERS,
            pool_blocks=blocks,
            slots=REQUESTS,
            max_blocks=LENGTH // BLOCK,
            heads=HEADS,
            device=device,
        )
        for layer in self.storage.entries:
            for entry in layer.values():
                entry.normal_(generator=generator)
            if "max" in layer:
                low, high = (
                    torch.minimum(layer["max"], layer["min"]),
                    torch.maximum(layer["max"], layer["min"]),
                )
                layer["max"].copy_(high)
                layer["min"].copy_(low)
        self.q = torch.randn(REQUESTS, 32, 128, generator=generator, device=device, dtype=torch.bfloat16)
        # The indexers read no keys: a pool of one page stands for it.
        small = torch.zeros(BLOCK, HEADS.kv, HEADS.dim, dtype=torch.bfloat16, device=device)
        self.pool = KVPool({"k": small, "v": small}, BLOCK)
        self.flow.plan(self.storage, self.batch)
        self.space = self.flow.workspace(self.storage, REQUESTS, 1, self.batch.lengths.device)
        self.entry_bytes = sum(
            each.numel() * each.element_size() for each in self.storage.entries[0].values()
        )

    def score(self, layer: int) -> None:
        self.flow.run_step(0, self.storage, layer, self.q, self.pool, self.batch)

    def choose(self, layer: int) -> None:
        self.flow.run_step(1, self.storage, layer, self.q, self.pool, self.batch)

    def both(self, layer: int) -> Any:
        return self.flow.select(self.storage, layer, self.q, self.pool, self.batch)

    def expected(self, layer: int) -> torch.Tensor:
        """Scores [requests, kv heads, blocks] in fp64."""
        table = self.batch.page_table.long()
        entries = {
            name: data[table].double().transpose(1, 2) for name, data in self.storage.entries[layer].items()
        }
        q = self.q.double().view(REQUESTS, 8, 4, 128)
        if "centroids" in entries:
            return torch.einsum("rhbd,rhgd->rhbg", entries["centroids"], q).mean(-1)
        best = None
        for head in range(4):
            one = q[:, :, head, None]
            value = torch.maximum(one * entries["max"], one * entries["min"]).sum(-1)
            best = value if best is None else torch.maximum(best, value)
        assert best is not None
        return best

    def check(self) -> dict[str, float]:
        """Largest error of the scores, and the share of selected blocks that fp64 scores select as well."""
        selection = self.both(0)
        expected = self.expected(0)
        (buffer,) = self.space.buffers.values()
        n = LENGTH // BLOCK - 1
        got = buffer.view(REQUESTS, 8, -1)[..., :n].double()
        error = float((got - expected[..., :n]).abs().max() / expected[..., :n].abs().max())
        assert error < 1e-5, f"scores are off by {error}"
        inner = expected[..., 1 : n - 1]
        wanted = inner.topk(BUDGET - 3).indices + 1
        chosen = selection.ids[..., 1 : BUDGET - 2].long()
        agreed = float((chosen[..., None] == wanted[..., None, :]).any(-1).double().mean())
        assert agreed > 0.999, f"only {agreed} of the selected blocks agree"
        return {"score_error": error, "agreement": agreed}

    def time(self, call: Any) -> float:
        return time_in_graph([lambda layer=layer: call(layer) for layer in range(LAYERS)]).median


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    import triton

    rate = copy_bandwidth(torch.device("cuda"))
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "commit": options.commit, "copy_bytes_per_s": rate, "flows": {}, "sweep": [],
        "shape": {"requests": REQUESTS, "tokens": LENGTH, "block": BLOCK, "budget": BUDGET, "heads": [32, 8, 128]},
    }  # fmt: skip
    path = Path(options.out) / "scoring.json"
    for name in ("block_topk", "quest"):
        case = Case(name)
        row: dict[str, Any] = case.check()
        row["bound_us"] = case.entry_bytes / rate * 1e6
        row["score_us"], row["select_us"], row["both_us"] = map(
            case.time, (case.score, case.choose, case.both)
        )
        row["score_over_bound"] = row["score_us"] / row["bound_us"]
        result["flows"][name] = row
        print(name, {key: round(value, 5) for key, value in row.items()}, flush=True)
        path.write_text(json.dumps(result, indent=1))
        del case
        if options.sweep:
            sweep(name, result, path)


def sweep(name: str, result: dict[str, Any], path: Path) -> None:
    torch.cuda.empty_cache()
    tiles = (16, 32, 64, 128)
    case = None
    for tile, warps, stages, workers in itertools.product(tiles, (1, 2, 4), (1, 2, 3), (16, 32, 64)):
        if not 16 <= tile // warps <= 64 or (workers < 64 and workers * warps > 64):
            continue
        schedule = Schedule(tile, warps, 128, stages, workers)
        if case is None:
            case = Case(name, {0: schedule})
        else:
            case.flow = CompiledFlow(case.flow.program, schedules={0: schedule})
            case.flow.plan(case.storage, case.batch)
            case.space = case.flow.workspace(case.storage, REQUESTS, 1, case.batch.lengths.device)
        case.check()
        row = {"flow": name, "tile": tile, "warps": warps, "stages": stages, "workers": workers}
        row["score_us"] = case.time(case.score)
        result["sweep"].append(row)
        path.write_text(json.dumps(result, indent=1))
    ranked = sorted((row for row in result["sweep"] if row["flow"] == name), key=lambda row: row["score_us"])
    for row in ranked[:8] + ranked[-2:]:
        print({**row, "score_us": round(row["score_us"], 2)}, flush=True)


if __name__ == "__main__":
    main()
