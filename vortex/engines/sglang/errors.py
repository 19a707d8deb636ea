"""Everything the SGLang backend refuses: a stable code, one sentence, and what to do instead."""

from __future__ import annotations

from vortex.dsl.catalogue import kinds

REFUSALS = kinds(
    6,
    (1, "no-algorithm", "The attention backend vortex was chosen, and no algorithm.",
     "Set VORTEX_ALGORITHM=algo.py, or start with `vortex serve algo.py --model-path …`."),
    (2, "two-algorithms", "The environment names {environment}, --json-model-override-args {override}.",
     "Give the algorithm in one of the two."),
    (3, "bad-setting", "{error}.", "Write it as docs/sglang.md shows."),
    (4, "bad-override", "--json-model-override-args: \"vortex\" {error}.",
     "Write {{\"vortex\": {{\"algorithm\": \"algo.py\", \"set\": {{\"budget\": 128}}}}}}."),
    (5, "bad-algorithm", "{target} cannot be served:\n{findings}",
     "See `vortex check {target}`; hyper-parameters come from {where}."),
    (20, "version", "This is SGLang {version}; supported are {supported}.", "Install one of these."),
    (21, "hooks", "SGLang {version} does not let the backend in: {missing}.",
     "See the plugin's error further up in the log; SGLANG_PLUGINS, where it is set, must name vortex."),
    (22, "flag", "{flag} does not go with the attention backend vortex: {why}.", "{remedy}."),
    (23, "model", "{model} cannot be decoded by the attention backend vortex: {why}.",
     "Choose a model of plain multi-head attention, or another --attention-backend."),
    (24, "page-size", "--page-size {page_size} is no multiple of the flow's block_size {block_size}.",
     "Give --page-size {example}, or leave it out."),
    (25, "prefill-only", "vortex is --prefill-attention-backend alone, and prompts are attended densely.",
     "Give --decode-attention-backend vortex, or --attention-backend vortex for both."),
    (26, "replaced", "SGLang decodes this model with {chosen}, although {flag} vortex was given.",
     "Choose another model: this one needs an attention backend of its own."),
    (27, "not-loaded", "SGLang {version} did not load the plugin vortex.",
     "Install vortex-attention in this environment; SGLANG_PLUGINS, where it is set, must name vortex."),
    (40, "state-memory", "{flow} keeps {kib} KiB of state a request: {gib} GiB for {slots} requests, and {available} "
     "GiB are free.",
     "Start with --max-running-requests {fitting} or fewer."),
    (41, "kv-dtype", "--kv-cache-dtype gives a pool of {dtype}; kernels are made for {known}.",
     "Choose another --kv-cache-dtype."),
    (42, "pool-layout", "{name} of layer {layer} lies as {found}; [slots, heads, dim] in the KV dtype is needed.",
     "Start without options that change the layout of the KV cache."),
    (43, "attention-feature", "Layer {layer} of the model has {words}, which decode steps do not compute.",
     "Serve this model with another attention backend."),
    (44, "graph-size", "Decode graphs of {asked} requests, and slots for {slots}.",
     "Raise --max-running-requests or lower --cuda-graph-max-bs."),
    (45, "scales-differ", "The model's layers scale logits differently ({found}).",
     "Serve this model with another attention backend."),
    (46, "shared-heads", "{flow} has share_heads, and its KV heads are split over {ranks} ranks.",
     "Start with --tp-size 1, or set share_heads=False."),
    (47, "head-parameter", "Parameter {name!r} has an axis of query heads, which {ranks} ranks split.",
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
