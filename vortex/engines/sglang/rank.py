"""What one tensor-parallel rank holds of a model, and the flow that it runs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vortex.dsl.ir import Program, Shape
from vortex.engines.sglang.errors import StartError
from vortex.engines.sglang.refusals import shape_of
from vortex.engines.sglang.settings import Settings
from vortex.vtensor.batch import Heads

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vortex.codegen.compiled import CompiledFlow
    from vortex.vtensor.reference import ReferenceRunner

    Runner = CompiledFlow | ReferenceRunner


@dataclass(frozen=True)
class Rank:
    """model: sizes of the whole model; size, rank: ranks that split its heads, and which of them this is.

    With more ranks than KV heads each KV head lies on several ranks, and each of these has some of its query
    heads: a flow then selects for those alone.
    """

    model: Shape
    size: int = 1
    rank: int = 0

    @property
    def heads(self) -> Heads:
        return Heads(
            self.model.query_heads // self.size, max(self.model.kv_heads // self.size, 1), self.model.head_dim
        )

    @property
    def replicated(self) -> bool:
        return self.size > self.model.kv_heads

    @property
    def first(self) -> int:
        """Number of this rank's first KV head in the model."""
        if self.replicated:
            return self.rank // (self.size // self.model.kv_heads)
        return self.rank * self.heads.kv

    @property
    def shape(self) -> Shape:
        """The model as this rank sees it."""
        heads = self.heads
        return Shape(heads.query, heads.kv, heads.dim, self.model.layers)

    def program(self, settings: Settings) -> Program:
        """The flow traced for this rank's heads. Raises StartError."""
        program = settings.program(self.shape)
        if self.size > 1 and program.policy.share_heads:
            raise StartError("shared-heads", flow=program.name, ranks=self.size)
        return program

    def weights(self, settings: Settings, program: Program) -> Mapping[str, Tensor]:
        """Values of the flow's parameters, of this rank's KV heads. Raises StartError, WeightError."""
        from vortex.vtensor.weights import load_weights, weight_shape

        if not program.weights:
            return {}
        whole = program if self.size == 1 else settings.program(self.model)
        found = load_weights(whole)
        for weight in program.weights:
            if weight.per_kv:
                axis = int(weight.per_layer)
                found[weight.name] = found[weight.name].narrow(axis, self.first, self.heads.kv)
            shape = weight_shape(program, weight)
            if tuple(found[weight.name].shape) != shape:
                raise StartError("head-parameter", name=weight.name, ranks=self.size)
        return found


def rank_of(model_config: Any) -> Rank:
    """This process's rank of a model that SGLang describes."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return Rank(shape_of(model_config), parallel.attn_tp_size, parallel.attn_tp_rank)


def make_runner(settings: Settings, rank: Rank, kv_dtype: torch.dtype, on_gpu: bool) -> Runner:
    """Compiled kernels on a GPU, the reference elsewhere. Raises StartError."""
    program = rank.program(settings)
    weights = rank.weights(settings, program)
    if not on_gpu:
        from vortex.vtensor.reference import ReferenceRunner

        return ReferenceRunner(program, weights=weights)
    import torch

    from vortex.codegen.compiled import CompiledFlow, Options

    kinds = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float8_e4m3fn: "fp8"}
    if kv_dtype not in kinds:
        raise StartError("kv-dtype", dtype=kv_dtype, known=", ".join(kinds.values()))
    return CompiledFlow(program, Options(kinds[kv_dtype]), weights=weights)


_RUNNERS: dict[tuple[str, Rank, str, bool], Runner] = {}


def shared_runner(settings: Settings, rank: Rank, kv_dtype: torch.dtype, on_gpu: bool) -> Runner:
    """`make_runner` once a process: sizing memory asks before the backend does."""
    key = (repr(settings), rank, str(kv_dtype), on_gpu)
    if key not in _RUNNERS:
        _RUNNERS[key] = make_runner(settings, rank, kv_dtype, on_gpu)
    return _RUNNERS[key]
