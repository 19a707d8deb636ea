"""Text of docs/algorithms.md: the shipped algorithms, what they cost, and how much attention they find."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from vortex.cli.algorithms import Described, describe, docstring

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "recall.json"

INTRODUCTION = """# Algorithms

Generated from `algorithms/` and `benchmarks/results/recall.json` by `python -m docs.generate`.

{count} published methods, one a file, each tested against an oracle written from its paper. `vortex algorithms` lists
them in a terminal; `vortex run quest` decodes with one.

*Bytes*: entries stored for each token and KV head (KV in bf16, head dimension 128, where K itself has 256).
*Kernels*: of each layer in a decode step to select blocks, a selection counted as one (long rows take it in several
launches); a step plans once for all layers besides, and summaries of finished blocks are one kernel for all layers.
*P*: it has `Parameter`s, which ship untrained. *S*: it carries state from step to step.

| file | method | paper | block | bytes | kernels | |
|---|---|---|---|---|---|---|
"""

RECALL = """
## Recall of attention

How much of dense attention's probability the attended blocks hold, in percent, with 5%, 10% and 20% of the blocks
attended. {model}, {layers} of its 30 layers and all heads; {positions} decode positions, {stride} tokens apart, of
each of {passages} passages of {text}; {device}. Measured by `benchmarks/recall.py`
with the reference executor.

* Every file runs with blocks of {block_size}, without dense layers, and selects in each layer and step, so that rows
  compare. Some methods are made for larger blocks or for reuse: this is not their recommended setting. Numbers of
  blocks that are hyper-parameters are scaled with the budget.
* First, last and current block are always attended (by `moba.py` the current one alone). They hold most of this model's
  attention: *random* is what they and random blocks hold. *oracle* takes the blocks of largest true mass, the most
  that a set per KV head can.
* A figure in parentheses is the share of blocks that was really attended, where a method chooses its own number.
* Methods with state (S) start {warm_steps} steps before the first position that counts. They have seen nothing of the
  prompt. H2O, TOVA and Scissorhands never take back what they once left out, and begin with equal scores, so they keep
  the first blocks: without the prompt's queries they are no better than a fixed pattern.
* **Methods with Parameters (P) ran with untrained ones**: no trained weights are shipped. Their figures say that the
  file runs, and nothing about the paper.
* It is a small model (135M parameters) and short contexts: an order of methods here is no order elsewhere.

"""

LIMITS = """
## What is not here, and why

* **MoBA and Quest per query head**: a selection for each query head. A set belongs to a KV head here, whose query heads
  read the same pages once; `moba.py` and `quest.py` combine the scores of the group.
* **NSA's compression and sliding branches, SparQ's mean value**: several attention outputs combined. `attn` ends an
  indexer; `nsa.py` and `sparq.py` select as the papers do.
* **PQCache's own codebooks, ClusterKV**: clustering per request. `product_quantization.py` takes given codebooks.
* **SnapKV's window, H2O's sum over the prompt**: queries of the prompt. State starts at the first decode step, and so
  do the votes of `snapkv.py` and `h2o.py`.
* **MagicPIG's sampling estimator**: weights of single tokens inside attention. `magicpig.py` counts collisions to rank
  blocks, which are then attended exactly.
* **InfLLM-V2's kernels across the edge of a block**: neighbours of a block in `forward_cache`. A block is summarised
  alone, so that prefix caching may share it; `infllm_v2.py` keeps its kernels inside.
"""


def algorithms_page() -> str:
    """The text of docs/algorithms.md."""
    found = [describe(path) for path in sorted((ROOT / "algorithms").glob("*.py"))]
    parts = [INTRODUCTION.format(count=len(found)), *(f"{_row(each)}\n" for each in found)]
    parts += [_recall(found), LIMITS, "\n## The files\n"]
    for each in found:
        text = docstring(Path(each.path)).strip()
        parts.append(f"\n### [{each.name}](../algorithms/{each.name}.py)\n\n```text\n{text}\n```\n")
    return "".join(parts)


def _marks(each: Described) -> str:
    return " ".join(mark for mark, has in (("P", each.parameters), ("S", each.state)) if has)


def _row(each: Described) -> str:
    link = f"[{each.name}](../algorithms/{each.name}.py)"
    what = each.what.rstrip(".").replace("|", "\\|")
    cells = (link, what, _paper(each), each.block_size, f"{each.entry_bytes:g}", each.kernels, _marks(each))
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _paper(each: Described) -> str:
    """The paper's line of a docstring, its arXiv number as a link."""
    text = docstring(Path(each.path))
    line = re.search(r"^Paper: (.*?)\.?$", text, re.MULTILINE)
    number = re.search(r"arXiv:(\d{4}\.\d{4,5})", text)
    if number:
        return f"[{number[1]}](https://arxiv.org/abs/{number[1]})"
    return line[1] if line else ""


def _recall(found: list[Described]) -> str:
    held = json.loads(RESULTS.read_text(encoding="utf-8"))
    facts = {**held, "layers": len(held["layers"])}
    rows: dict[str, Any] = held["algorithms"]
    contexts = list(next(iter(rows.values())))
    shares = list(rows["oracle"][contexts[0]])
    heads = [f"{int(context):,} tokens, {share}" for context in contexts for share in shares]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    marks = {each.name: _marks(each) for each in found}
    order = sorted(rows, key=lambda name: (name == "random", name != "oracle", name))
    for name in order:
        shown = f"*{name}*" if name in ("oracle", "random") else f"{name} {marks[name]}".strip()
        cells = [_cell(rows[name][context][share], share) for context in contexts for share in shares]
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return RECALL.format(**facts) + "\n".join(lines) + "\n"


def _cell(held: dict[str, float], share: str) -> str:
    wanted = float(share.rstrip("%")) / 100
    own = f" ({held['attended']:.0%})" if abs(held["attended"] - wanted) > max(0.1 * wanted, 0.005) else ""
    return f"{100 * held['recall']:.1f}{own}"
