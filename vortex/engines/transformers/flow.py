"""From what names a flow to what runs it on a model's device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import torch

from vortex.dsl.diagnostics import Diagnostic, render
from vortex.dsl.flow import vFlow
from vortex.dsl.ir import Program, Shape
from vortex.dsl.lint import entry_bytes_per_token
from vortex.dsl.load import trace_file, trace_flow
from vortex.engines.transformers.model import LoadedModel
from vortex.vtensor.runner import FlowRunner

Flow = str | os.PathLike[str] | type[vFlow] | Program | FlowRunner
"""A file (`file.py`, `file.py:Name`), a shipped algorithm's name, a class, a traced program, or what runs one."""


class FlowError(ValueError):
    """A flow with errors; the message shows them as `vortex check` does, `findings` holds them."""

    def __init__(self, findings: tuple[Diagnostic, ...]) -> None:
        super().__init__("\n".join(["the flow has errors", *map(render, findings)]))
        self.findings = findings


def runner_of(flow: Flow, loaded: LoadedModel, settings: Mapping[str, Any] | None = None) -> FlowRunner:
    """A runner of the flow for this model. A file or class is traced in this process, under hyper-parameters.

    Raises FlowError, and ValueError for settings of what is traced already.
    """
    if isinstance(flow, str | os.PathLike):
        traced = trace_file(flow, settings, _shape(loaded))
    elif isinstance(flow, type) and issubclass(flow, vFlow):
        traced = trace_flow(flow, settings, _shape(loaded))
    elif not isinstance(flow, Program) and not hasattr(flow, "select"):
        raise TypeError(f"engine: a flow is an algorithm file, a shipped name or a class, got {flow!r}")
    elif settings:
        raise ValueError(f"settings: {type(flow).__name__} is traced already; give them where it is traced")
    else:
        return default_runner(flow, loaded) if isinstance(flow, Program) else flow
    if traced.program is None:
        raise FlowError(traced.errors)
    return default_runner(traced.program, loaded)


def entry_bytes(program: Program, element: int) -> int | None:
    """Bytes of the entries of one block of one KV head of one layer that the indexer reads, at `element` bytes of K.

    None where layers or steps reuse a selection: they read none, and nobody counts them apart.
    """
    if (program.policy.reuse_steps, program.policy.reuse_layers) != (1, 1):
        return None
    read = {str(node.attr("name")) for node in program.indexer.nodes if node.op == "Entry"}
    size = sum(entry_bytes_per_token(program, name, element) for name in sorted(read))
    return round(size * program.policy.block_size)


def _shape(loaded: LoadedModel) -> Shape:
    return Shape(loaded.heads.query, loaded.heads.kv, loaded.heads.dim, loaded.layers)


def default_runner(program: Program, loaded: LoadedModel) -> FlowRunner:
    """Compiled kernels where the model is on a GPU, the reference on a CPU."""
    if loaded.device.type == "cuda":
        from vortex.codegen.compiled import CompiledFlow, Options

        kinds = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
        if loaded.dtype not in kinds:
            raise ValueError(
                f"engine: K and V of {loaded.dtype} have no compiled kernels; load the model in bf16"
            )
        return cast("FlowRunner", CompiledFlow(program, Options(kinds[loaded.dtype])))
    from vortex.vtensor.reference import ReferenceRunner

    return cast("FlowRunner", ReferenceRunner(program))
