"""What a server may be started with: everything else is refused before it serves, by the name of its flag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from vortex.dsl.ir import Program, Shape
from vortex.engines.sglang import compat
from vortex.engines.sglang.errors import StartError
from vortex.engines.sglang.settings import NAME, settings

SMALLEST_PAGE = 16
"""Tokens of a page where the user did not choose and blocks are smaller."""


@dataclass(frozen=True)
class Flag:
    """A server argument that does not go with the backend.

    field    its name in SGLang's arguments; a version that lacks it cannot have it set
    refused  of its value
    """

    field: str
    flag: str
    why: str
    refused: Callable[[Any], Any] = bool
    remedy: str = ""


def _several(value: Any) -> bool:
    return value is not None and value > 1


FLAGS = (
    Flag("speculative_algorithm", "--speculative-algorithm",
         "drafted tokens are verified as a prompt, which is dense, and may be taken back"),
    Flag("enable_dp_attention", "--enable-dp-attention", "its ranks hold different requests"),
    Flag("attn_dp_size", "--attn-dp-size", "its ranks hold different requests", _several),
    Flag("dcp_size", "--dcp-size", "a rank sees a part of each block", _several),
    Flag("enable_prefill_cp", "--enable-prefill-cp", "a rank sees a part of each block"),
    Flag("attn_cp_size", "--attn-cp-size", "a rank sees a part of each block", _several),
    Flag("enable_kv_cache_sharding", "--enable-kv-cache-sharding", "a rank sees a part of the pages"),
    Flag("pp_size", "--pp-size", "a rank sees a part of the layers", _several),
    Flag("enable_two_batch_overlap", "--enable-two-batch-overlap", "one batch is planned at a time"),
    Flag("enable_pdmux", "--enable-pdmux", "prefill would write pages while decoding summarises them"),
    Flag("enable_mixed_chunk", "--enable-mixed-chunk",
         "tokens that are decoded together with a prompt would be attended densely"),
    Flag("enable_hisparse", "--enable-hisparse", "it selects tokens itself"),
    Flag("enable_unified_memory", "--enable-unified-memory", "its pages move"),
    Flag("enable_page_major_kv_layout", "--enable-page-major-kv-layout",
         "K and V of a layer are not one tensor there"),
    Flag("dllm_algorithm", "--dllm-algorithm", "it decodes several tokens at once"),
    Flag("enable_torch_compile", "--enable-torch-compile", "it would trace the backend's Python",
         remedy="Leave it out: decoding runs in CUDA graphs anyway"),
    Flag("enable_nvidia_megakernel", "--enable-nvidia-megakernel", "it attends by itself"),
    Flag("kv_cache_dtype", "--kv-cache-dtype", "its kernels read K and V in 16 bits or as fp8_e4m3",
         lambda value: value not in (None, "auto", "bf16", "bfloat16", "fp8_e4m3"), "Use auto, bf16 or fp8_e4m3"),
)  # fmt: skip


def decide(view: Any) -> dict[str, Any]:
    """What the backend makes of SGLang's arguments: refuses (StartError), or sets the page size.

    view  the arguments as they are resolved so far, attention backends included
    """
    prefill, decode = compat.backends(view)
    if decode != NAME:
        _not_asked(view, prefill, decode)
        return {}
    check_flags(view)
    config = compat.model_config(view)
    check_model(config)
    program = settings(config.hf_config).program(shape_of(config))
    return page_size(view.page_size, program)


def _not_asked(view: Any, prefill: str | None, decode: str | None) -> None:
    """Refuses what names the backend without making it decode."""
    for name in ("decode_attention_backend", "attention_backend"):
        given = compat.given(view, name)
        if given == NAME:
            raise StartError("replaced", chosen=decode, flag=f"--{name.replace('_', '-')}")
        if given is not None:
            break
    if prefill == NAME:
        raise StartError("prefill-only")


def check_flags(view: Any) -> None:
    """Raises StartError for the first flag that does not go with the backend."""
    for each in FLAGS:
        if each.refused(getattr(view, each.field, None)):
            remedy = each.remedy or f"Leave {each.flag} out, or choose another --attention-backend"
            raise StartError("flag", flag=each.flag, why=each.why, remedy=remedy)


def check_model(config: Any) -> None:
    """Raises StartError for a model whose attention is not that of plain heads over all tokens."""
    if found := next(_kinds(config), None):
        raise StartError("model", model=_architecture(config), why=found)


def _kinds(config: Any) -> Iterator[str]:
    from sglang.srt.configs.hybrid_arch import mambaish_config
    from sglang.srt.configs.model_config import AttentionArch

    arch = config.attention_arch
    if arch != AttentionArch.MHA:
        yield f"its attention is {arch.name}, which stores no K and V of each head"
    if config.is_encoder_decoder:
        yield "it has cross attention"
    kinds = sorted(set(getattr(config.hf_text_config, "layer_types", None) or ()) - {"full_attention"})
    if kinds:
        yield f"it has layers of type {', '.join(kinds)}"
    if config.is_hybrid_swa:
        yield "it has layers with a sliding window"
    if config.attention_chunk_size or config.is_local_attention_model:
        yield "it attends in chunks"
    if config.v_head_dim not in (None, config.head_dim):
        yield f"K has {config.head_dim} dimensions and V {config.v_head_dim}"
    if mambaish_config(config) is not None:
        yield "some of its layers are not attention"


def check_layers(model: Any, layers: int, config: Any, window: int | None = None) -> None:
    """The loaded model's attention layers: one of each number, causal, plain. Raises StartError.

    window  sliding window of prompts, as SGLang read it from the model
    """
    from sglang.srt.layers.radix_attention import AttentionType, RadixAttention

    found = [each for each in model.modules() if isinstance(each, RadixAttention)]
    numbers = sorted(each.layer_id for each in found)
    why = None if window is None else f"it has a sliding window of {window} tokens"
    if numbers != list(range(layers)):
        why = f"its {layers} layers have attention layers {numbers}"
    for each in found:
        if each.attn_type != AttentionType.DECODER or each.is_cross_attention:
            why = f"layer {each.layer_id} is not causal self-attention"
        elif each.logit_cap:
            why = f"layer {each.layer_id} caps its logits"
        elif (each.sliding_window_size or -1) > 0:
            why = f"layer {each.layer_id} has a sliding window"
        elif each.v_head_dim != each.qk_head_dim:
            why = f"layer {each.layer_id} has K of {each.qk_head_dim} and V of {each.v_head_dim} dimensions"
        elif getattr(each, "xai_temperature_len", -1) > 0:
            why = f"layer {each.layer_id} scales its logits by length"
    if why:
        raise StartError("model", model=_architecture(config), why=why)


def page_size(given: int | None, program: Program) -> dict[str, Any]:
    """Of the pool: the user's where it is a multiple of the flow's block size, else refused; or one block."""
    block_size = program.policy.block_size
    if given is None:
        return {"page_size": max(block_size, SMALLEST_PAGE)}
    if given % block_size or given == 1:
        example = max(block_size, SMALLEST_PAGE)
        raise StartError("page-size", page_size=given, block_size=block_size, example=example)
    return {}


def shape_of(config: Any) -> Shape:
    """The sizes of a whole model, as SGLang describes it."""
    return Shape(config.num_attention_heads, config.get_total_num_kv_heads(), config.head_dim,
                 config.num_hidden_layers)  # fmt: skip


def _architecture(config: Any) -> str:
    return ", ".join(config.hf_config.architectures or ["The model"])
