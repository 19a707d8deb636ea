"""A built program as text: what was rewritten, which kernels run, what lies in memory between them, and why."""

from __future__ import annotations

from collections.abc import Iterator

from vortex.codegen.build import Built
from vortex.codegen.graph import expression
from vortex.codegen.steps import Buffer, Kernel, Output, Pass, Select
from vortex.dsl.axes import computed

WHAT = {
    "store": "keeps", "reduce": "reduces", "scan": "sums up", "scatter": "spreads", "fill": "fills", "state": "stores",
    "scores": "scores", "mask": "marks",
}  # fmt: skip


def show_plan(built: Built) -> str:
    """The whole plan, a line a kernel, a pass and a buffer."""
    lines = [f"plan of {built.program.name} for {built.options.kv_dtype} keys and values", "", "rewrites"]
    lines += [f"  {rewrite}" for rewrite in built.rewrites] or ["  none"]
    lines += ["", "kernels", "  plan: sizes, budgets and chunks of a step, once for all layers"]
    if built.program.entries:
        names = ", ".join(repr(entry.name) for entry in built.program.entries)
        lines.append(
            f"  summarise: entries {names} of one finished block of one KV head, every layer in one launch"
        )
    for number, step in enumerate(built.plan.steps):
        lines += _step(built, number, step)
    if built.scores is not None:
        lines += ["", "forms (microseconds estimated from bytes and thread blocks)"]
        lines += [f"  {line}" for line in _forms(built)]
    lines += ["", "memory between kernels"]
    lines += [f"  {_buffer(built, buffer)}" for buffer in built.plan.buffers] or ["  none"]
    lines += ["", "bytes a block and KV head"]
    lines += [f"  {line}" for line in _bytes(built)]
    return "\n".join(lines) + "\n"


def _step(built: Built, number: int, step: Kernel | Select) -> Iterator[str]:
    if isinstance(step, Select):
        made = built.program.indexer.nodes[step.node]
        end = "attended" if step.final else "a set for later kernels"
        drawn = ""
        if made.op == "topK" and made.attr("mode") == "stochastic":
            drawn = f", recall {made.attr('recall')}: sampled where that saves time, exact elsewhere"
        yield f"  select_{number}: {made.op} over {step.buffer}, {end}{drawn}"
        return
    source = built.of_step(number)
    chosen = source.schedule
    how = "one thread block a row" if step.kind == "row" else "chunks in parallel"
    yield (
        f"  {source.name}: {how}, {chosen.tile} blocks a tile ({chosen.elements} elements a block at most), "
        f"{chosen.warps} warps"
    )
    for sweep in step.passes:
        for output in sweep.outputs:
            yield f"    {_domain(sweep)}: {_output(built, output)}"


def _forms(built: Built) -> Iterator[str]:
    """Where one fused kernel a row replaces the scoring kernel and the selection."""
    for rows in (8, 128, 1024):
        for blocks in (64, 256, 2048):
            form = built.form(rows, blocks)
            assert form is not None
            chosen = "fused, nothing in memory between" if form.fused else "split, scores in memory between"
            yield f"{rows} rows of {blocks} blocks: {chosen} ({form.fused_us:.1f} fused, {form.split_us:.1f} split)"


def _domain(sweep: Pass) -> str:
    if sweep.domain is None:
        return "all blocks"
    return "the row" if sweep.domain == -1 else f"members of %{sweep.domain}"


def _output(built: Built, output: Output) -> str:
    nodes = built.program.indexer.nodes
    place = nodes[output.node].location
    line = f" (line {place.line})" if place is not None else ""
    if output.how == "fill":
        return f"fills {output.name}_{output.node} with {output.fill:g}"
    what = f"state {output.name!r}" if output.how == "state" else f"{output.how}_{output.node}"
    return f"{WHAT[output.how]} {what} = {expression(nodes, output.node)}{line}"


def _buffer(built: Built, buffer: Buffer) -> str:
    axes = ", ".join(str(axis) for axis in buffer.axes)
    per = {"block": "a block", "member": "a member", "row": "a row"}[buffer.layout]
    return f"{buffer.key}: ({axes}) {buffer.dtype} {per}, {4 * buffer.elements} bytes"


def _bytes(built: Built) -> Iterator[str]:
    """Entries that the indexer reads, and scores that pass through memory."""
    from vortex.codegen.build import entry_bytes

    read = {str(node.attr("name")) for node in built.program.indexer.nodes if node.op == "Entry"}
    total = 0.0
    for entry in built.program.entries:
        if entry.name in read:
            size = entry_bytes(built, entry.name)
            total += size
            stored = built.options.entry_dtype if entry.storage == "kv" else entry.storage
            yield f"entry {entry.name!r}: {size:g} ({stored}, computed as {computed(stored)})"
    scratch = sum(2 * 4 * buffer.elements for buffer in built.plan.buffers if buffer.layout == "block")
    yield f"in all {total:g} of entries; {scratch} written and read between kernels"
