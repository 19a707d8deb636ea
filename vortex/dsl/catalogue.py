"""Every finding in an author's file: its stable code, its sentence, and its remedy.

Codes are grouped by hundreds: 0 the file, 1 the class and its hyper-parameters, 2 Python that a symbolic
tensor does not take part in, 3 axes, 4 results and entries, 5 lints. 6 is servers that do not start
(vortex/engines/sglang/errors.py). A code is never given a second meaning.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """code: VTX and three digits; message and remedy: format strings over the facts of one finding."""

    code: str
    message: str
    remedy: str

    @property
    def severity(self) -> str:
        return "warning" if self.code.startswith("VTX5") else "error"


def kinds(hundred: int, *rows: tuple[int, str, str, str]) -> dict[str, Kind]:
    """Rows of number, slug, message and remedy, by slug. Each hundred belongs to one place."""
    return {
        slug: Kind(f"VTX{hundred * 100 + number:03d}", message, remedy)
        for number, slug, message, remedy in rows
    }


FILE = kinds(
    0,
    (1, "syntax", "Python cannot read this file: {error}.", "Correct the syntax at the marked place."),
    (2, "no-flow", "No class in this file derives from vFlow.",
     "Write `class MyMethod(vFlow):` with a `forward_indexer(q, c)`."),
    (3, "several-flows", "This file has several flows: {names}.", "Choose one: `{path}:{first}`."),
    (4, "no-such-flow", "This file has no flow named {name}.{near}", "Flows in this file: {names}."),
    (5, "unreadable", "The file cannot be read: {error}.{near}", "{remedy}"),
    (6, "file-raised", "Running the file raised {error}.",
     "Only imports, constants and definitions belong at the top of an algorithm file."),
    (7, "time-limit", "Tracing took longer than {limit} s.",
     "Look for a loop that does not end; a loop over a range is unrolled while tracing."),
    (8, "memory-limit", "Tracing needed more than {limit} MiB of memory.",
     "Tracing handles shapes, not data: look for a large list or array made in the file."),
    (9, "output-limit", "Tracing printed more than {limit} KiB.",
     "Take the print statements out of the file."),
    (10, "crashed", "The tracing process ended without a result ({error}).",
     "Take out calls that end the process or load native code."),
)  # fmt: skip

CLASS = kinds(
    1,
    (1, "no-indexer", "{flow} has no forward_indexer.",
     "Write `def forward_indexer(q, c):` that returns the blocks to attend, e.g. `return topK(scores)`."),
    (2, "signature", "{method} takes {given}, not ({wanted}).", "Write `def {method}({wanted}):`."),
    (3, "q-in-cache", "forward_cache has no query: it runs once per finished block.",
     "Write `def forward_cache(c):` and move what needs `q` to forward_indexer."),
    (4, "unknown-key", "{flow} has no hyper-parameter {key}.{near}",
     "Known: {names}. An attribute of your own must be defined in the class and read by a method."),
    (5, "bad-value", "{key} = {value} is not {wanted}.", "Write for example `{key} = {example}`."),
    (6, "block-size", "block_size = {value} is not a power of two between 1 and 1024.",
     "Write `block_size = 16`."),
    (7, "budget", "Budget {text}: {error}.", "{remedy}"),
    (8, "layers", "Layer list {text}: {error}.", "{remedy}"),
    (9, "unread-attribute", "No method reads the attribute {key}.{near}",
     "Use it in a method as `self.{key}`, or take it out."),
    (10, "unknown-method", "{method} is not called by anyone.{near}",
     "Vortex calls forward_cache and forward_indexer; name a helper otherwise and call it from one of them."),
    (11, "init", "{flow} is never constructed: its __init__ does not run.",
     "Write hyper-parameters as class attributes, `top = 8`, and learned tensors as "
     "`Parameter(\"w\", \"dim r=16\", file=\"w.safetensors\")`."),
    (12, "reuse-state", "The state {names} would miss the {what} that reuse a selection.",
     "Write `{key} = 1`, or select without state."),
)  # fmt: skip

PYTHON = kinds(
    2,
    (1, "unknown-operator", "There is no operator and no other name {name}.{near}",
     "`vortex ops` lists the operators."),
    (2, "unknown-entry", "c[{name!r}] is not an entry.{near}",
     "Write it in forward_cache as `c[{name!r}] = …`, or assign it in forward_indexer to make it a state."),
    (3, "branch", "Python cannot branch on a tensor: its values exist only when the kernel runs.",
     "Use `Where(condition, a, b)`."),
    (4, "iterate", "Python cannot iterate over {what}.", "{remedy}"),
    (5, "builtin", "The builtin {name}() does not work on a tensor.", "{remedy}"),
    (6, "item", "{what} asks for a value while the flow is traced; there is none yet.",
     "Keep it a tensor: operators and numbers mix freely."),
    (7, "torch-idiom", "Tensors of a flow have no {name}.", "{remedy}"),
    (8, "foreign-call", "{name} was called on a tensor of a flow.", "{remedy}"),
    (9, "self-state", "A flow keeps nothing on self: {name} would be lost, and shared between requests.",
     "Carry it as a state: `c[{name!r}] = …` in forward_indexer, read it back with `c.get({name!r}, 0.0)`."),
    (10, "write-input", "c[{name!r}] is the model's own tensor and cannot be written.",
     "Choose another entry name: `c[\"my_{name}\"] = …`."),
    (11, "arguments", "{op}: {error}.", "The signature is `{op}{signature}`."),
    (12, "positional", "{op} takes `{names}` by keyword only.", "Write `{calls}`."),
    (13, "raised", "{method} raised {error}.", "Correct the marked line."),
    (14, "not-a-tensor", "{op} takes tensors and numbers, not {given}.", "{remedy}"),
    (15, "outside", "{op} was used outside forward_cache and forward_indexer.",
     "Move it into one of the two methods; only `Parameter` may stand in the class body."),
    (16, "entry-name", "An entry is named by a string, not by {given}.", "Write `c[\"name\"]`."),
    (17, "cache-read", "forward_cache sees k, v and the entries it has written, not c[{name!r}].{near}",
     "Write it first, or compute it from `c[\"k\"]` and `c[\"v\"]`."),
    (18, "membership", "Whether an entry exists is not a question of a trace.",
     "Use `c.get({name!r}, 0.0)`: the default serves a new request."),
    (19, "unroll-limit", "More than {limit} operators were recorded.",
     "A Python loop is unrolled while tracing: use an operator over the axis instead."),
    (20, "recursion", "The methods call each other without end.",
     "Give the recursion an end that sizes decide."),
    (21, "delete", "Entries and attributes cannot be deleted.", "Take the `del` out."),
    (22, "inplace", "Tensors are values: nothing in them can be assigned.",
     "Compute a new one, e.g. with `Where(condition, a, b)`."),
    (23, "view-attribute", "`c` has no {name}: it gives tensors by name.", "{remedy}"),
    (24, "unknown-attribute", "{flow} has no attribute {name}.{near}",
     "Define it in the class: `{name} = …`; what lasts from step to step is a state, `c.get({name!r}, 0.0)`."),
    (25, "other-method", "A tensor of {which} was kept and used outside it.",
     "Store it: `c[\"name\"] = …` in forward_cache is read as `c[\"name\"]` in forward_indexer."),
    (26, "block-count", "The number of blocks differs by request: it is not known while tracing.",
     "Use operators over block, First(n), Last(n), Positions(), or a budget expression: `k=\"12.5% * blocks\"`."),
    (27, "called", "A tensor is not a function.", "Apply operators to it, `Exp(x)`, or index it, `x[:, 0]`."),
)  # fmt: skip

AXES = kinds(
    3,
    (1, "axis-size", "Axis {axis} has {left} elements in one operand and {right} in the other.",
     "Give one of them another name: `Rename(x, {axis}=\"other\")`."),
    (2, "contracted-size", "GeMM contracts {left} of the left operand with {right} of the right one.",
     "Operands are {a} and {b}; transpose one with `.T`, or check the sizes."),
    (3, "contracted-name", "GeMM would contract {left} with {right}, axes of different meaning.",
     "Operands are {a} and {b}; transpose one with `.T`, or `Rename` the axis if this is meant."),
    (4, "dim-range", "dim={dim} is out of range for {type}.",
     "Its axes stand at positions 1 to {last}; a name is clearer: dim=\"{first}\"."),
    (5, "no-axis", "{type} has no axis {axis}.",
     "Name one of its axes, or give one this name: `Rename(x, old={axis!r})`."),
    (6, "request-axis", "dim=0 is the request, and requests are never mixed.",
     "{type} has its first axis at position 1; a name is clearer."),
    (7, "bad-dim", "{dim!r} names no axis.",
     "An axis is a name, a position, or a tuple of these: dim=\"token\", dim=2."),
    (8, "repeated-dim", "dim names the axis {axis} twice.", "Name each axis once."),
    (9, "repeated-axis", "The result would have two axes named {axis}.",
     "Rename one of them first: `Rename(x, {axis}=\"other\")`."),
    (10, "two-blocks", "A product over two block axes would grow with the square of the context.",
     "Compare blocks with a fixed number of vectors, or reduce one operand over block first."),
    (11, "default-block", "Without dim this would reduce block, the last axis of {type}.",
     "Write dim=\"block\" if that is meant."),
    (12, "reduce-scalar", "There is no axis left to work along.",
     "Take this step out: its operand is one number."),
    (13, "slice-block", "The axis {axis} is as long as the request: it cannot be sliced, split, merged or joined.",
     "{remedy}"),
    (14, "restricted-block", "The operands are restricted to different blocks: {left} and {right}.",
     "Gather both with the same index set, or bring one back with `Scatter(x)`."),
    (15, "gather-restricted", "{type} is restricted already.", "Gather from the tensor over all blocks."),
    (16, "gather-no-block", "{type} has no block axis to restrict.", "Gather a tensor that has one."),
    (17, "gather-axis", "The index set picks from {axis}, which {type} does not have in that size.",
     "Make the index set from a tensor with the same axis."),
    (18, "gather-index", "Gather takes an index set or integers, not {type}.",
     "Make an index set with topK, or integers with ArgMax or `Cast(x, \"int32\")`."),
    (19, "gather-dim", "Integers do not say which axis they index.",
     "Write `Gather(x, ids, dim=\"token\")`."),
    (20, "scatter-full", "{type} is not restricted to an index set.",
     "Scatter undoes `Gather(x, i)` along block."),
    (21, "split-size", "{axis} cannot be split into {sizes}.", "The sizes must multiply to {axis.size}."),
    (22, "bad-size", "{name} = {value!r} is not a positive integer.", "Write a number known while tracing{more}."),
    (23, "merge-count", "Merge joins at least two axes, not {given}.",
     "Name two axes: `Merge(x, \"token\", \"dim\", to=\"feat\")`."),
    (24, "rename-nothing", "Rename was given no names.", "Write `Rename(x, token=\"other\")`."),
    (25, "rename-block", "The axis block keeps its name.", "Rename another axis."),
    (26, "axis-name", "{name!r} is not a name for an axis.",
     "Use letters, digits and _, other than `axis` in Split."),
    (27, "transpose-rank", "{type} has no two axes to swap.", "Take the transpose out."),
    (28, "transpose-axes", "Transpose was given {given} for {type}.",
     "It lists every axis once, in the new order: `Transpose(x, \"dim\", \"head\")`; `.T` swaps the last two."),
    (29, "index-request", "The first position of a subscript is the request and must be `:`.",
     "{type} is indexed as `x[:, i]`."),
    (30, "index-rank", "{count} subscripts for {type}.",
     "Give at most one per axis, the leading 1 included."),
    (31, "index-range", "Position {index} is outside {axis}.", "Its positions are 0 to {last}."),
    (32, "empty-slice", "{index} leaves nothing of {axis}.", "Correct the bounds."),
    (33, "bad-index", "{axis} cannot be indexed by {index}.", "{remedy}"),
    (34, "gemm-scalar", "GeMM needs axes to contract, got {left} and {right}.",
     "Use `*` to scale by a number."),
    (35, "one-axis", "{what} works along one axis, not {dims}.", "Name one axis, or Merge them first."),
    (36, "restricted-argument", "A position within the restricted axis of {type} means nothing outside it.",
     "Scatter it back first: `ArgMax(Scatter(x, fill=...))`."),
    (37, "bitwise-float", "& | ^ work on booleans and integers, not on {type}.",
     "Compare first: `(x > 0) & (y > 0)`."),
    (38, "not-boolean", "{what} must be boolean, not {type}.", "Compare first, e.g. `x > 0`."),
    (39, "unknown-dtype", "There is no dtype {dtype!r}.{near}", "Known: {names}."),
    (40, "cast-scalar", "{dtype} keeps one scale per last axis, and a number has none.",
     "Cast to \"bf16\" instead."),
    (41, "concat-nothing", "There is nothing to join.", "Give at least one operand."),
    (42, "conv-weights", "Conv1d weights are numbers known while tracing, not {value!r}.",
     "Write for example `Conv1d(x, [0.25, 0.5, 0.25])`."),
    (43, "bad-number", "{what} must be {wanted}, not {value!r}.", "{remedy}"),
    (44, "parameter-spec", "Parameter {name}: {error}.",
     "Write the axes with sizes unless the model has them: `Parameter(\"w\", \"layer kv dim r=16\")`."),
    (45, "parameter-source", "Parameter {name}: {error}.",
     "Give `file=\"weights.safetensors\"` or `init=\"normal\"`."),
    (46, "tensor-index", "A tensor cannot stand in a subscript.",
     "Restrict with `Gather(x, i)`, choose with `Where(mask, x, 0)`; a subscript takes numbers known while tracing."),
)  # fmt: skip

RESULTS = kinds(
    4,
    (1, "no-result", "forward_indexer returns nothing, and no index set is left over to attend.",
     "End with `return topK(scores)`."),
    (2, "two-results", "forward_indexer makes several index sets that nothing uses: which one is attended?",
     "Return one of them, or join them with Union."),
    (3, "unused-set", "This index set is neither attended nor used.", "Return it, use it, or take it out."),
    (4, "not-along-block", "{what} selects along block, and {type} has no block axis.",
     "Score each block; along another axis write dim= and k=."),
    (5, "leftover-axis", "{what} takes one score a block, and {type} also has {left}.",
     "Reduce first: `Max(s, dim={dim})` or `Mean(s, dim={dim})`."),
    (6, "scores-returned", "{what} was given scores, not a set of blocks: {type}.",
     "Select from them: `topK(scores)`."),
    (7, "not-a-set", "{what} takes an index set along block or a boolean over it, not {type}.",
     "Make one with topK, or compare: `scores > 0`."),
    (8, "result-axis", "{what} was given a set along {type.members.axis}; attention takes a set of blocks.",
     "Select along block: `topK(scores)`."),
    (9, "restricted-result", "{what} was given a boolean over a restricted block axis.",
     "Bring it back with `Scatter(x, fill=False)`."),
    (10, "entry-twice", "Entry {name} is written twice with different shapes: {first} and {second}.",
     "Use two names."),
    (11, "entry-and-state", "{name} is written in both methods.",
     "Summaries are written in forward_cache, states in forward_indexer: use two names. "
     "A state starts at the default of `c.get({name!r}, 0.0)`."),
    (12, "entry-scalar", "Entry {name} must be a tensor computed from the block, not {given}.",
     "A state needs no start here: `c.get({name!r}, 0.0)` in forward_indexer. A constant is a class attribute."),
    (13, "state-shape", "Nothing gives the state {name} axes, and it is used as more than one number.",
     "Assign it an expression that has them: `c[{name!r}] = c.get({name!r}, 0.0) + scores`."),
    (14, "state-grows", "The state {name} changes its shape from step to step: {first}, then {second}.",
     "Assign a tensor with the same axes each step."),
    (15, "state-default", "The default of the state {name} is {given}, not a number.",
     "Write `c.get({name!r}, 0.0)`."),
    (16, "state-restricted", "The state {name} is restricted to an index set.",
     "Bring it back with `Scatter(x)` first."),
    (17, "state-defaults", "The state {name} is read with two defaults, {first} and {second}.",
     "Use one default."),
    (18, "attn-inputs", "attn takes q, c[\"k\"] and c[\"v\"] as they came, not {given} for {name}.",
     "Write `attn(q, c[\"k\"], c[\"v\"], i)`."),
    (19, "k-required", "topK along {axis} needs k from 1 to its size, got {k!r}.", "Write `k=8`."),
    (20, "bad-k", "{what} = {value!r} is neither a number of blocks nor a budget expression.",
     "Write `{what}=64`, or leave it out to fill the budget."),
    (21, "bad-mode", "There is no top-k mode {mode!r}.", "Use \"exact\" or \"stochastic\"."),
    (22, "bad-recall", "recall = {value!r} is not a number in (0, 1].", "Write `recall=0.97`."),
    (23, "cache-result", "forward_cache returns nothing: what it stores are its assignments.",
     "Take the return out, or write `c[\"name\"] = …`."),
    (24, "scalar-result", "The result is {given}, not a set of blocks.",
     "Return an index set, e.g. `topK(scores)`."),
    (25, "blocks-in-cache", "{what} speaks of all blocks, and forward_cache sees one finished block.",
     "Use it in forward_indexer."),
    (26, "attn-used", "What attn returns is the end of an indexer: nothing can be computed from it.",
     "Return it. Several attention outputs cannot be combined; join their sets with Union instead."),
)  # fmt: skip

LINTS = kinds(
    5,
    (1, "entry-unread", "Entry {name} is stored for every block and never read.",
     "Read it in forward_indexer, or take it out."),
    (2, "unused-value", "This value is computed and never used.", "Use it, or take it out."),
    (3, "monotone", "{op} keeps the order of the scores: it changes nothing before topK.",
     "Take it out: topK of its operand selects the same blocks."),
    (4, "entry-large", "Entry {name} takes {bytes} bytes a token, as much as K itself ({limit}).",
     "Summarise over token, or store fewer bits: `Cast(x, \"fp8\")`."),
    (5, "reads-all-keys", "The indexer reads {name} of every block: selection saves no bytes.",
     "Score summaries from forward_cache, restrict it first, `Gather(c[\"k\"], i)`, or select less often: "
     "`reuse_layers = 4`."),
    (6, "unscaled", "Softmax over products of q that were not scaled by 1/sqrt(dim).",
     "Write `Softmax(s * self.scale)`."),
    (7, "positional-block", "dim={dim} is the block axis here: a reduction by position over the whole request.",
     "If it is meant, write dim=\"block\"."),
    (8, "attribute-unread", "No method reads the attribute {key}: setting it changes nothing.",
     "Use it in a method as `self.{key}`, or take it out."),
    (9, "parameter-file", "Parameter {name}: there is no file {path} beside this one, and running will need it.",
     "Put it there, in safetensors, with a tensor named {name} of the axes {axes}; or start from `init=\"normal\"`."),
    (10, "state-from-nothing",
     "Without a finished block {op} over block is {value}, and the state {name} keeps that for the whole request.",
     "Leave the state as it is there: `some = Max(Positions().index, dim=\"block\") >= 0`, then "
     "`c[{name!r}] = Where(some, new, old)`."),
)  # fmt: skip

CATALOGUE: dict[str, Kind] = {**FILE, **CLASS, **PYTHON, **AXES, **RESULTS, **LINTS}
