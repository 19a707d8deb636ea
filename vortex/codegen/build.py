"""From a program to the source of its kernels: plan, schedule, render. Imports neither torch nor Triton."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vortex.codegen.comments import safe_comment
from vortex.codegen.decompose import decompose
from vortex.codegen.entries import write_summary
from vortex.codegen.fuse import fusable, plan
from vortex.codegen.memory import Argument, row_elements
from vortex.codegen.passes import Sweep, Writer
from vortex.codegen.schedule import Form, Schedule, choose_form, schedule, summary_warps, warps_for
from vortex.codegen.simplify import optimise
from vortex.codegen.steps import Kernel, Plan, Select
from vortex.codegen.templates import functions_used, render
from vortex.dsl.ir import Program
from vortex.dsl.ops.storage import BITS
from vortex.dsl.policy import Budget, Layers

KV_DTYPES = ("bf16", "fp16", "fp32", "fp8")


FUNCTIONS_OF_KERNELS = ("_math.py.jinja", "_pool.py.jinja")
"""Templates of functions that generated code calls; a kernel gets those that it needs."""


class BuildError(ValueError):
    """Options that no kernel can be built for; the message says which are possible."""


@dataclass(frozen=True)
class Options:
    """What kernels are built for.

    kv_dtype  how K and V lie in the pool: bf16, fp16, fp32 or fp8 (e4m3, with scales)
    entries   how an entry without a Cast is stored; None: as K and V, bf16 where those have 8 bits. fp8 halves what
              a step reads to choose blocks; `vortex bench --entries fp8` shows what that does to recall
    """

    kv_dtype: str = "bf16"
    entries: str | None = None

    def __post_init__(self) -> None:
        if self.kv_dtype not in KV_DTYPES:
            raise BuildError(f"kv_dtype: one of {', '.join(KV_DTYPES)}, got {self.kv_dtype!r}")
        if self.entries is not None and self.entries not in KV_DTYPES:
            raise BuildError(f"entries: one of {', '.join(KV_DTYPES)} or None, got {self.entries!r}")

    @property
    def entry_dtype(self) -> str:
        """How an entry without a Cast is stored."""
        if self.entries is not None:
            return self.entries
        return "bf16" if self.kv_dtype == "fp8" else self.kv_dtype


@dataclass(frozen=True)
class KernelSource:
    """One generated module: its source and what its kernels take.

    step  the plan's step it runs, or None for planning and summaries
    """

    name: str
    source: str
    arguments: tuple[Argument, ...] = ()
    step: int | None = None
    schedule: Schedule = field(default_factory=lambda: Schedule(1, 1, 1))


@dataclass(frozen=True)
class Built:
    """All that a program becomes."""

    program: Program
    options: Options
    plan: Plan
    kernels: tuple[KernelSource, ...]
    selections: tuple[int, ...]
    rewrites: tuple[Any, ...] = field(default=())
    scores: int | None = None

    def form(self, rows: int, blocks: int) -> Form | None:
        """How rows of at most `blocks` blocks are selected from; None where the flow has one form alone."""
        if self.scores is None:
            return None
        read = {str(node.attr("name")) for node in self.program.indexer.nodes if node.op == "Entry"}
        size = sum(entry_bytes(self, name) for name in read)
        return choose_form(rows, blocks, size, self.kernel("map_0").schedule.elements)

    def fused(self, blocks: int) -> KernelSource:
        """The fused kernel for rows of at most `blocks` blocks."""
        assert self.scores is not None
        tile = max(1 << max(blocks - 1, 0).bit_length(), 16)
        return _fused(
            self.program, self.options, self.plan, self.scores, tile, self.kernel("map_0").schedule.elements
        )

    def kernel(self, name: str) -> KernelSource:
        return next(each for each in self.kernels if each.name == name)

    def of_step(self, step: int) -> KernelSource:
        return next(each for each in self.kernels if each.step == step)

    @property
    def tiles(self) -> tuple[int, ...]:
        """Sizes of chunks that map kernels over all blocks work on: the plan kernel lists each."""
        found = []
        for number, step in enumerate(self.plan.steps):
            if isinstance(step, Kernel) and step.kind == "map" and step.passes[0].domain is None:
                found.append(self.of_step(number).schedule.tile)
        return tuple(dict.fromkeys(found)) or (64,)


def build(
    program: Program, options: Options | None = None, schedules: Mapping[int, Schedule] | None = None
) -> Built:
    """Plans a program and writes its kernels; `schedules` replaces those of some steps of the plan."""
    options = options or Options()
    program, rewrites = optimise(program)
    program, _ = decompose(program)
    planned = plan(program)
    writer = Writer(program, planned, options.entry_dtype, options.kv_dtype)
    kernels: list[KernelSource] = []
    if program.entries:
        kernels.append(_summary(program, options))
    for number, step in enumerate(planned.steps):
        if isinstance(step, Kernel):
            chosen = (schedules or {}).get(number) or schedule(program, planned, step)
            kernels.append(_kernel(program, writer, step, number, chosen))
    selections = tuple(step.node for step in planned.steps if isinstance(step, Select))
    scores = fusable(program) if any(kernel.name == "map_0" for kernel in kernels) else None
    built = Built(program, options, planned, tuple(kernels), selections, rewrites, scores)
    step_plan = KernelSource("plan", _plan_source(built))
    return Built(program, options, planned, (step_plan, *kernels), selections, rewrites, scores)


def entry_bytes(built: Built, name: str) -> int:
    """Stored bytes of an entry for one block and KV head, scales included."""
    entry = built.program.entry(name)
    storage = built.options.entry_dtype if entry.storage == "kv" else entry.storage
    size = row_elements(entry.axes, storage) * (1 if storage in ("int4", "sign") else BITS[storage] // 8)
    if storage in ("int8", "int4"):
        size += 2 * math.prod(axis.size or 1 for axis in entry.axes[:-1])
    return size


def _origin(program: Program) -> list[str]:
    return [f"flow {safe_comment(program.name)}", f"from {safe_comment(program.file)}"]


def _kernel(program: Program, writer: Writer, kernel: Kernel, number: int, chosen: Schedule) -> KernelSource:
    written = writer.write(kernel, chosen.tile)
    name = f"{kernel.kind}_{number}"
    source = render(
        "sweep.py.jinja",
        origin=_origin(program),
        name=name,
        kind=kernel.kind,
        arguments=written.arguments.ordered(),
        functions=functions_used(
            FUNCTIONS_OF_KERNELS, (line for sweep in written.sweeps for line in sweep.lines)
        ),
        sweeps=written.sweeps,
        uses_state=written.uses_state,
    )
    return KernelSource(name, source, written.arguments.ordered(), number, chosen)


def _fused(
    program: Program, options: Options, planned: Plan, scores: int, tile: int, elements: int
) -> KernelSource:
    written, shown = Writer(program, planned, options.entry_dtype, options.kv_dtype).write_row(scores, tile)
    arguments = written.arguments.ordered()
    source = render(
        "fused.py.jinja",
        origin=_origin(program),
        arguments=arguments,
        functions=functions_used(FUNCTIONS_OF_KERNELS, written.sweeps[0].lines),
        sweep=written.sweeps[0],
        score=shown,
    )
    return KernelSource(
        f"fused_{tile}", source, arguments, None, Schedule(tile, warps_for(tile * elements, 4), elements)
    )


@dataclass(frozen=True)
class Typed:
    """An argument of the summary kernels, with its type where it is an address that differs by layer."""

    variable: str
    pointer: bool
    type: str


TRITON_TYPES = {
    "bf16": "tl.bfloat16", "fp16": "tl.float16", "fp32": "tl.float32", "fp8": "tl.float8e4nv", "int8": "tl.int8",
    "int4": "tl.uint8", "sign": "tl.uint8", "int32": "tl.int32", "bool": "tl.int8",
}  # fmt: skip


def stored_type(program: Program, options: Options, argument: Argument) -> str:
    """Storage dtype of what an argument points to."""
    if argument.kind == "input":
        return options.kv_dtype
    if argument.kind == "entry":
        storage = program.entry(argument.name).storage
        return options.entry_dtype if storage == "kv" else storage
    if argument.kind == "entry_scale":
        return "fp16"
    if argument.kind == "weight":
        return program.weight(argument.name).dtype
    return "fp32"


def _summary(program: Program, options: Options) -> KernelSource:
    emitter, arguments, stores = write_summary(program, options.entry_dtype, options.kv_dtype)
    typed = [
        Typed(each.variable, each.kind != "stride", TRITON_TYPES[stored_type(program, options, each)])
        for each in arguments.ordered()
    ]
    body = [*emitter.preamble, *emitter.body, *stores]
    source = render(
        "summarise.py.jinja",
        origin=_origin(program),
        functions=functions_used(FUNCTIONS_OF_KERNELS, body),
        arguments=typed,
        pointers=[each for each in typed if each.pointer],
        names=", ".join(each.variable for each in typed),
        body=body,
    )
    chosen = Schedule(1, summary_warps(program), 1)
    return KernelSource("summarise", source, arguments.ordered(), None, chosen)


@dataclass(frozen=True)
class BudgetRule:
    """One budget expression of the plan kernel: which selection it serves, and in which layers."""

    selection: int
    expression: str
    layers: str
    comment: str


def budget_of(program: Program, node: int) -> Budget | None:
    """The set size that a selection asks for: its own, or the flow's budget; None: as many as there are."""
    made = program.indexer.nodes[node]
    if made.op not in ("topK", "topP", "Threshold"):
        return None
    asked = made.attr("k") if made.op == "topK" else made.attr("max")
    return Budget.parse(program.policy.budget if asked is None else asked)  # type: ignore[arg-type]


def _rules(built: Built) -> Iterator[BudgetRule]:
    program = built.program
    layers, size = program.shape.layers, program.policy.block_size
    asked = [(0, Budget.parse(program.policy.budget))]
    for number, node in enumerate(built.selections):
        own = budget_of(program, node)
        if own is not None:
            asked.append((number + 1, own))
    for selection, budget in asked:
        texts: dict[str, list[int]] = {}
        for layer in range(layers):
            text = budget.device_source(
                block_size=size, layer=layer, layers=layers, minimum="tl.minimum", maximum="tl.maximum"
            )
            texts.setdefault(text, []).append(layer)
        for text, group in texts.items():
            covered = f"range({layers})" if len(group) == layers else f"({', '.join(map(str, group))},)"
            shown = covered if len(group) == layers else f"tl.static_range({layers})"
            yield from _rule(selection, text, group, layers, budget, shown)


def _rule(
    selection: int, text: str, group: list[int], layers: int, budget: Budget, shown: str
) -> Iterator[BudgetRule]:
    """A rule for all layers at once, or one for each layer of a group."""
    comment = f"budget {safe_comment(budget.text)}"
    if len(group) == layers:
        yield BudgetRule(selection, text, shown, comment)
        return
    for layer in group:
        yield BudgetRule(selection, text, f"range({layer}, {layer + 1})", comment)


def _plan_source(built: Built) -> str:
    policy = built.program.policy
    dense = Layers.parse(policy.dense_layers).numbers(built.program.shape.layers)
    return render(
        "plan.py.jinja",
        origin=_origin(built.program),
        budgets=list(_rules(built)),
        dense_layers=sorted(dense),
        tiles=built.tiles,
    )


__all__ = ["Built", "KernelSource", "Options", "Sweep", "budget_of", "build", "stored_type"]
