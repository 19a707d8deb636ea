"""Decodes random requests through the reference executor, with everything an oracle needs at hand."""

import importlib.util
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.oracles import ORACLES, Case
from vortex.dsl.flow import vFlow
from vortex.dsl.ir import Program, Shape
from vortex.dsl.load import trace_file
from vortex.vtensor.batch import Batch, Heads
from vortex.vtensor.pool import KVPool
from vortex.vtensor.reference import ReferenceRunner

FOLDER = Path(__file__).parents[2] / "algorithms"
STATEFUL = ("h2o", "tova", "scissorhands", "snapkv", "rising")
LAYERS, LAYER, KV_HEADS, DIM, BUDGET = 2, 1, 2, 16, 6

# Hyper-parameters for contexts of a few hundred tokens; reuse of selections is not a matter of the method.
SMALL = {
    "a_shape": {"first": 2, "last": 3},
    "channel_groups": {"groups": 4},
    "coarse_to_fine": {"candidates": 9},
    "dilated": {"local": 2, "stride": 4},
    "double_sparsity": {"channels": 6},
    "infllm": {"representatives": 3},
    "lightning_indexer": {"width": 8, "share_heads": False},
    "loki": {"rank": 8},
    "lserve": {"logical_pages": 2, "reuse_steps": 1},
    "magicpig": {"tables": 8, "bits": 3},
    "moba": {"top": 5},
    "nsa": {"compression": 2, "hidden": 8},
    "product_quantization": {"parts": 4, "codes": 8},
    "seer_attention": {"width": 8},
    "shadowkv": {"landmarks": 5, "outliers": 4},
    "sparq": {"channels": 6},
    "tidal_decode": {"reuse_layers": 1},
    "top_theta": {"budget": 12},
    "twilight": {"p": 0.6},
}


def parameter(program: Program, stem: str, weight, generator) -> torch.Tensor:
    """Values that exercise a parameter, [layers, kv heads, axes…]."""
    shape = (LAYERS, KV_HEADS, *(axis.size for axis in weight.axes))
    if stem == "double_sparsity":
        rows = [torch.randperm(DIM, generator=generator)[: shape[2]] for _ in range(LAYERS * KV_HEADS)]
        return torch.stack(rows).reshape(shape)
    if stem == "duo_attention":
        return torch.arange(LAYERS * KV_HEADS).reshape(shape) % 2 * 1.0
    if stem == "top_theta":
        return torch.full(shape, 0.5)
    return torch.randn(shape, generator=generator)


@dataclass
class Decode:
    """Requests in one pool, decoded a token a step, and the same tokens contiguously for the oracle."""

    stem: str
    block: int
    group: int
    starts: list[int]
    steps: int
    page_blocks: int = 2
    recent: int = 1
    changes: dict = field(default_factory=dict)
    states: dict = field(default_factory=dict)

    def __post_init__(self):
        settings = {
            "block_size": self.block,
            "budget": BUDGET,
            "recent_blocks": self.recent,
            "dense_layers": "",
        }
        self.settings = {**settings, "sink_blocks": 1, **SMALL.get(self.stem, {}), **self.changes}
        shape = Shape(KV_HEADS * self.group, KV_HEADS, DIM, LAYERS)
        traced = trace_file(FOLDER / f"{self.stem}.py", self.settings, shape)
        assert traced.errors == ()
        self.program = traced.program
        self.generator = torch.Generator().manual_seed(zlib.crc32(f"{self.stem}{self.block}".encode()))
        weights = {
            each.name: parameter(self.program, self.stem, each, self.generator)
            for each in self.program.weights
        }
        self.runner = ReferenceRunner(self.program, weights=weights)
        self.hyper = {**own_values(self.stem), **self.settings}
        self.heads = Heads(KV_HEADS * self.group, KV_HEADS, DIM)
        self._allocate()

    def _allocate(self):
        longest = max(self.starts) + self.steps
        self.page = self.page_blocks * self.block
        pages = -(-longest // self.page)
        order = torch.randperm(len(self.starts) * pages, generator=self.generator)
        self.table = order.reshape(len(self.starts), pages).to(torch.int32)
        total = len(order) * self.page
        self.tokens = {
            name: torch.randn(len(self.starts), longest, KV_HEADS, DIM, generator=self.generator)
            for name in ("k", "v")
        }
        # What no token was written to is NaN, so that reading it shows.
        self.pool = KVPool(
            {name: torch.full((total, KV_HEADS, DIM), torch.nan) for name in ("k", "v")}, self.page
        )
        self.storage = self.runner.allocate(
            layers=LAYERS, pool_blocks=total // self.block, slots=len(self.starts), heads=self.heads,
            max_blocks=-(-longest // self.block), device=torch.device("cpu"),
        )  # fmt: skip
        self.queries = torch.randn(
            self.steps, len(self.starts), self.heads.query, DIM, generator=self.generator
        )
        self.written = [0] * len(self.starts)
        self.summarised = [0] * len(self.starts)

    def run(self):
        """Yields (Case, oracle's choice, attended blocks) of every request, KV head and step."""
        for step in range(self.steps):
            lengths = [start + step for start in self.starts]
            batch = Batch(
                torch.tensor(lengths, dtype=torch.int32), self.table,
                torch.arange(len(lengths), dtype=torch.int32), self.page, self.block, self.heads,
            )  # fmt: skip
            for row, length in enumerate(lengths):
                self._write(batch, row, length)
            q = self.queries[step]
            selection = self.runner.select(self.storage, LAYER, q, self.pool, batch)
            for row, length in enumerate(lengths):
                for head in range(KV_HEADS):
                    count = int(selection.counts[row, head])
                    case = self._case(row, head, length, q)
                    choice = ORACLES[self.stem](case, self.states.setdefault((row, head), {}))
                    yield case, choice, selection.ids[row, head, :count].tolist()

    def _write(self, batch: Batch, row: int, length: int):
        for position in range(self.written[row], length):
            slot = int(self.table[row, position // self.page]) * self.page + position % self.page
            for name, tensor in self.pool.tensors.items():
                tensor[slot] = self.tokens[name][row, position]
        self.written[row] = length
        finished = batch.finished_blocks(row)
        new = batch.pool_blocks(row, finished)[self.summarised[row] :]
        self.runner.summarise(self.storage, LAYER, self.pool, new)
        self.summarised[row] = finished

    def _case(self, row: int, head: int, length: int, q: torch.Tensor) -> Case:
        weights = {name: value[LAYER, head] for name, value in self.runner.weights.items()}
        return Case(
            q[row, head * self.group : (head + 1) * self.group].double(),
            self.tokens["k"][row, :length, head].double(),
            self.tokens["v"][row, :length, head].double(),
            block=self.block,
            budget=self.settings["budget"],
            sink=self.settings["sink_blocks"],
            recent=self.recent,
            hyper=self.hyper,
            parameters={n: w.double() if w.is_floating_point() else w for n, w in weights.items()},
        )


def own_values(stem: str) -> dict:
    """The class attributes of an algorithm file, as it stands."""
    spec = importlib.util.spec_from_file_location(f"algorithm_{stem}", FOLDER / f"{stem}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (flow,) = [
        value for value in vars(module).values() if isinstance(value, type) and value.__bases__ == (vFlow,)
    ]
    return {
        name: value for name, value in vars(flow).items() if not name.startswith("_") and not callable(value)
    }
