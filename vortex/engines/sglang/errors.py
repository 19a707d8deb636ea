"""Everything the SGLang backend refuses: a stable code, one sentence, and what to do instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """code: VTX6 and two digits; message and remedy: format strings over the facts of one refusal."""

    code: str
    message: str
    remedy: str


def _refusals(*rows: tuple[int, str, str, str]) -> dict[str, Refusal]:
    return {slug: Refusal(f"VTX{600 + number}", message, remedy) for number, slug, message, remedy in rows}


REFUSALS = _refusals(
    (1, "no-algorithm", "The attention backend vortex was chosen, and no algorithm.",
     "Set VORTEX_ALGORITHM=algo.py, or start with `vortex serve algo.py --model-path …`."),
    (2, "two-algorithms", "The environment names {environment}, --json-model-override-args {override}.",
     "Give the algorithm in one of the two."),
    (3, "bad-setting", "{error}.", "Write it as docs/sglang.md shows."),
    (4, "bad-override", "--json-model-override-args: \"vortex\" {error}.",
     "Write {{\"vortex\": {{\"algorithm\": \"algo.py\", \"set\": {{\"budget\": 128}}}}}}."),
    (5, "bad-algorithm", "{target} cannot be served:\n{findings}",
     "See `vortex check {target}`; hyper-parameters come from {where}."),
    (20, "hooks", "SGLang {version} did not take these hooks: {absent}.",
     "Vortex supports SGLang 0.5.16 and 0.5.23; the log of the start says why a hook failed."),
    (21, "page-size", "--page-size {page} is no multiple of the flow's block_size {block}.",
     "Start with --page-size {block} or a multiple of it, or set block_size."),
    (22, "state-memory", "{flow} keeps {kib} KiB of state a request: {gib} GiB for {slots} requests, and {available} "
     "GiB are free.",
     "Start with --max-running-requests {fitting} or fewer."),
    (23, "kv-dtype", "--kv-cache-dtype gives a pool of {dtype}; kernels are made for {known}.",
     "Choose another --kv-cache-dtype."),
    (24, "pool-layout", "{name} of layer {layer} lies as {found}; [slots, heads, dim] in the KV dtype is needed.",
     "Start without options that change the layout of the KV cache."),
    (25, "attention-feature", "Layer {layer} of the model has {words}, which decode steps do not compute.",
     "Serve this model with another attention backend."),
    (26, "graph-size", "Decode graphs of {asked} requests, and slots for {slots}.",
     "Raise --max-running-requests or lower --cuda-graph-max-bs."),
    (27, "layer-numbers", "The model's attention layers are numbered {found}; 0 to {last} are expected.",
     "Serve this model with another attention backend."),
    (28, "scales-differ", "The model's layers scale logits differently ({found}).",
     "Serve this model with another attention backend."),
    (29, "shared-heads", "{flow} has share_heads, and its KV heads are split over {ranks} ranks.",
     "Start with --tp-size 1, or set share_heads=False."),
    (30, "head-parameter", "Parameter {name!r} has an axis of query heads, which {ranks} ranks split.",
     "Start with a --tp-size of at most the number of KV heads."),
)  # fmt: skip


class StartError(RuntimeError):
    """Why the server does not start; `code` is stable."""

    def __init__(self, slug: str, **facts: object) -> None:
        refusal = REFUSALS[slug]
        self.slug, self.code = slug, refusal.code
        super().__init__(
            f"{refusal.code}: {refusal.message.format(**facts)}\n  = {refusal.remedy.format(**facts)}"
        )
