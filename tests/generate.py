"""Random valid programs over the whole language, the same for the same seed: `generate(seed)`.

A program is what an author could have written: a class with hyper-parameters, both methods, entries, states,
parameters, restricted blocks and every way to end. Sizes are small (head 1 to 5, dim 4 to 16, block 1 to 16), values
stay within about 1e3, and nothing divides by zero or takes a logarithm of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.generate_steps import BLOCKS, STEPS, Value, Writer, reduction
from vortex.dsl.axes import BLOCK, Axis, TensorType, computed
from vortex.dsl.ir import Program, Shape
from vortex.dsl.load import trace_source
from vortex.dsl.source import Source
from vortex.dsl.trace import recording
from vortex.dsl.view import PER_HEAD
from vortex.dsl.views import FlowRecorder

INPUT_BOUND = 4.0
"""Magnitude of q, k and v that bounds assume."""


@dataclass(frozen=True)
class Generated:
    """One program. `source` is the algorithm file, `program` what it traces to for `shape`."""

    seed: int
    source: str
    shape: Shape
    program: Program


def generate(seed: int, steps: int = 12) -> Generated:
    """The program of a seed; about `steps` operators a method, and as many again inside of expressions."""
    rng = random.Random(seed)
    shape = Shape(1, 1, 4, 2)
    group, kv = rng.randint(1, 5), rng.randint(1, 3)
    shape = Shape(group * kv, kv, rng.randint(4, 16), 2)
    text = _file(rng, shape, rng.choice([1, 2, 4, 8, 16]), steps)
    traced = trace_source(Source(f"generated_{seed}.py", text), shape=shape)
    if traced.program is None:
        raise AssertionError(f"seed {seed} wrote a file that the language refuses:\n{text}\n{traced.errors}")
    return Generated(seed, text, shape, traced.program)


def _file(rng: random.Random, shape: Shape, block_size: int, steps: int) -> str:
    policy = [f"block_size = {block_size}", f"budget = {rng.choice(BUDGETS)}"]
    policy += [f"sink_blocks = {rng.randint(0, 2)}", f"recent_blocks = {rng.randint(0, 2)}"]
    if rng.random() < 0.15:
        policy.append(f"share_heads = {rng.choice(['sum', 'mean', 'max'])!r}")
    cache, entries = _cache(rng, shape, block_size, rng.randint(1, max(steps // 2, 1)))
    indexer = _indexer(rng, shape, block_size, entries, steps)
    me = rng.choice(["", "self, "])
    lines = ["from vortex import *", "", "", "class Generated(vFlow):", *_indent(policy, 4), ""]
    lines += [f"    def forward_cache({me}c):", *_indent(cache or ["pass"], 8), ""]
    lines += [f"    def forward_indexer({me}q, c):", *_indent(indexer, 8), ""]
    return "\n".join(lines)


BUDGETS = (
    "2",
    "4",
    "7",
    '"max(3, 25% * blocks)"',
    '"min(6, blocks / 2)"',
    '"floor(tokens / 16) + 2"',
    '"layer + 3"',
)


def _indent(lines: list[str], width: int) -> list[str]:
    return [" " * width + line for line in lines]


def _recorder(which: str, shape: Shape, block_size: int) -> FlowRecorder:
    return FlowRecorder(Source("generated.py", ""), which, shape, block_size, PER_HEAD)


def _grow(w: Writer, count: int) -> None:
    made = [each for _, each in STEPS]
    weights = [weight for weight, _ in STEPS]
    for _ in range(count * 8):
        if count == 0:
            return
        if w.rng.choices(made, weights)[0](w) is not None:
            count -= 1


def _input(w: Writer, name: str) -> None:
    with recording(w.recorder):
        tensor = w.recorder.input(name)
    if name != "q":
        w.lines.append(f'{name} = c["{name}"]')
    w.add(Value(name, tensor, INPUT_BOUND))


def _parameter(w: Writer) -> None:
    rng = w.rng
    axes = rng.choice(["dim r=3", "layer dim r=4", "layer kv r=2 dim", "kv dim", "head r=5", "dim", ""])
    init = rng.choice(["normal", "ones", "uniform", "zeros", "arange"])
    bound = {"normal": 4.0, "arange": 16.0}.get(init, 1.0)
    name = f"{w.prefix}w{w.count}"
    w.define(f'Parameter("{name}", {axes!r}, init="{init}", seed={rng.randint(0, 99)}) * 1.0', bound)


def _cache(
    rng: random.Random, shape: Shape, block_size: int, steps: int
) -> tuple[list[str], dict[str, tuple[TensorType, float]]]:
    """Lines of forward_cache, and the entries that it writes, with their bounds."""
    w = Writer(rng, _recorder("cache", shape, block_size), "x")
    for name in rng.choice([["k"], ["k", "v"], ["k"]]):
        _input(w, name)
    if rng.random() < 0.2:
        _parameter(w)
    _grow(w, steps)
    fitting = [each for each in w.values if each.type.members is None and each.text not in ("k", "v")]
    entries: dict[str, tuple[TensorType, float]] = {}
    for value in rng.sample(fitting, min(len(fitting), rng.randint(1, 3))):
        name = f"e{len(entries)}"
        entries[name] = (value.type, value.bound * 1.2 + 1)
        w.lines.append(f'c["{name}"] = {value.text}')
    return w.lines, entries


def _indexer(
    rng: random.Random,
    shape: Shape,
    block_size: int,
    entries: dict[str, tuple[TensorType, float]],
    steps: int,
) -> list[str]:
    w = Writer(rng, _recorder("indexer", shape, block_size), "y")
    _input(w, "q")
    for name, (type, bound) in entries.items():
        with recording(w.recorder):
            tensor = w.recorder.leaf("Entry", name, TensorType((BLOCK, *type.axes), computed(type.dtype)))
        w.lines.append(f'{name} = c["{name}"]')
        w.add(Value(name, tensor, bound))
    if not entries or rng.random() < 0.3:
        _input(w, rng.choice("kv"))
    if rng.random() < 0.3:
        _parameter(w)
    if rng.random() < 0.3:
        w.define(f"Positions().{rng.choice(['index', 'from_end'])}", BLOCKS)
    state = _read_state(w) if rng.random() < 0.35 else None
    _grow(w, rng.randint(3, steps))
    if rng.random() < 0.35:
        _restrict(w, rng.randint(1, 4))
    if state is not None:
        _write_state(w, state)
    ending = _ending(w)
    return [*w.lines, *ending]


def _read_state(w: Writer) -> Value:
    """A state over blocks (and the heads of the group), read before it is written."""
    group = Axis("head", w.recorder.shape.group)
    axes = w.rng.choice([(BLOCK,), (BLOCK,), (BLOCK, group), (group,)])
    with recording(w.recorder):
        tensor = w.recorder.leaf("State", "s", TensorType(axes))
    w.lines.append(f's = c.get("s", {w.rng.choice(["0.0", "0.5", "-1.0"])})')
    return w.add(Value("s", tensor, LIMIT_OF_STATE, frozenset({"s"})))


LIMIT_OF_STATE = 20.0


def _write_state(w: Writer, state: Value) -> None:
    """`c["s"] = s * 0.5 + news`, which stays bounded; the news have the state's axes and do not depend on it."""
    names = state.type.names
    found = w.pick(lambda each: each.is_float and not each.states and not each.restricted
                   and set(names) <= set(each.type.names))  # fmt: skip
    news = found if found is None else _reduced_to(w, found, names)
    if news is None or news.type.axes != state.type.axes:
        extra = "(Positions().index % 3) * 1.0" if "block" in names else "0.0"
        head = ' + Max(q, dim="dim")' if "head" in names else ""
        text = f"{extra}{head}"
        made = w.define(text, 8.0)
        assert made is not None
        news = made
    w.lines.append(f'c["s"] = s * 0.5 + Tanh({news.text}) * 4.0')


def _reduced_to(w: Writer, x: Value, names: tuple[str, ...]) -> Value | None:
    rest = tuple(name for name in x.type.names if name not in names)
    return reduction(w, x, rest) if rest else x


def _scores(w: Writer, restricted: bool | None = None) -> Value:
    """One float for each block: a value reduced to `block`."""

    def fits(each: Value) -> bool:
        allowed = restricted is None or each.restricted == restricted
        return each.is_float and "block" in each.type.names and allowed

    x = w.pick(fits)
    made = _reduced_to(w, x, ("block",)) if x is not None else None
    if made is not None and made.type.names == ("block",):
        return made
    made = w.define("Positions().from_end * -0.5", BLOCKS)
    assert made is not None
    return made


def _restrict(w: Writer, steps: int) -> None:
    """Coarse to fine: a set, what it restricts, a few steps, and often the way back."""
    scores = _scores(w, restricted=False)
    k = w.rng.choice(["", ", k=6", ', k="50% * blocks"', ", k=3"])
    sets = [f"topK({scores.text}{k})"] * 3 + [f"First({w.rng.randint(1, 5)})", f"Last({w.rng.randint(1, 5)})",
            f"Union(First(1), Last(2), topK({scores.text}, k=4))", f"{scores.text} > 0.11"]  # fmt: skip
    chosen = w.define(w.rng.choice(sets), 1.0, (scores,))
    source = w.pick(
        lambda each: "block" in each.type.names and not each.restricted and each.type.members is None
    )
    if chosen is None or source is None:
        return
    near = w.define(f"Gather({source.text}, {chosen.text})", source.bound, (source, chosen))
    if near is None:
        return
    _grow(w, steps)
    if w.rng.random() < 0.6:
        x = w.pick(lambda each: each.restricted and each.type.members is None)
        if x is not None:
            fill = "False" if x.type.dtype == "bool" else w.rng.choice(["0", "-1", "2"])
            w.define(f"Scatter({x.text}, fill={fill})", x.bound + 2, (x,))


def _ending(w: Writer) -> list[str]:
    """How the method says what is attended."""
    rng, scores = w.rng, _scores(w)
    t = scores.text
    sets = [
        f"topK({t})", f"topK({t}, dim=1)", f'topK({t}, dim="block", k=5)', f'topK({t}, k="max(2, blocks / 3)")',
        f"topP(Softmax({t}), p=0.7)", f"topP(Sigmoid({t}), 0.5, max=6)", f"Threshold({t}, 0.17)",
        f"Threshold({t}, t=-0.31, max=4)", f"Union(topK({t}, k=4), First(2))", f"Union(Last(3), topK({t}))",
    ]  # fmt: skip
    if not scores.restricted:
        sets += [f"{t} > 0.23", "Positions().index % 2 == 0", f"topK({t}) & (Positions().from_end < 9)"]
    text = rng.choice(sets)
    style = rng.choice(["return", "return", "attn", "name"])
    if style == "attn":
        return [f"i = {text}", 'return attn(q, c["k"], c["v"], i)']
    return [f"i = {text}", "return i"] if style == "name" else [f"return {text}"]
