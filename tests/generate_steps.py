"""Single steps of generated programs: an operator of the registry applied to values at hand, as an author writes it.

Every step is tried on the tracer first; what the language refuses is not written. Bounds of magnitudes are tracked
so that no value overflows, and every step keeps NaN out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import vortex
from vortex.dsl.axes import TensorType
from vortex.dsl.tensor import Tensor
from vortex.dsl.trace import recording
from vortex.dsl.views import FlowRecorder

BLOCKS = 64
"""Blocks that bounds of sums over `block` allow for."""

LARGEST = 1000.0
"""Magnitude above which a step is scaled down."""

ELEMENTS = 2048
"""Elements of one value for each block."""


@dataclass(frozen=True)
class Value:
    """A variable of the program that is being written.

    text    how the program reads it
    bound   magnitude that it stays within
    states  names of the states that it depends on
    """

    text: str
    tensor: Tensor
    bound: float
    states: frozenset[str] = frozenset()

    @property
    def type(self) -> TensorType:
        assert self.tensor.type is not None
        return self.tensor.type

    @property
    def is_float(self) -> bool:
        return self.type.is_float

    @property
    def restricted(self) -> bool:
        return any(axis.subset is not None for axis in self.type.axes)

    def size(self, name: str) -> int:
        return self.type.axis(name).size or BLOCKS


class Writer:
    """Lines of one method, and the values that they define."""

    def __init__(self, rng: random.Random, recorder: FlowRecorder, prefix: str) -> None:
        self.rng, self.recorder, self.prefix = rng, recorder, prefix
        self.lines: list[str] = []
        self.values: list[Value] = []
        self.names: dict[str, Any] = {name: getattr(vortex, name) for name in vortex.__all__}
        self.count = 0

    def attempt(self, text: str) -> Tensor | None:
        """What an expression gives, or None where the language refuses it; refused steps leave no trace."""
        nodes, leaves = len(self.recorder.nodes), dict(self.recorder.leaves)
        with recording(self.recorder):
            result = eval(text, self.names)
        kept = isinstance(result, Tensor) and result.type is not None and not self.recorder.findings
        if kept and math.prod(axis.size or 1 for axis in result.type.axes) <= ELEMENTS:
            return result
        del self.recorder.nodes[nodes:]
        self.recorder.leaves = leaves
        self.recorder.findings.clear()
        return None

    def define(self, text: str, bound: float, operands: tuple[Value, ...] = ()) -> Value | None:
        """Writes `x7 = text`, scaled down where it could grow large."""
        if bound > LARGEST:
            text, bound = f"({text}) * {4.0 / bound:.3g}", 4.0
        tensor = self.attempt(text)
        if tensor is None:
            return None
        states = frozenset().union(*(each.states for each in operands))
        self.count += 1
        name = f"{self.prefix}{self.count}"
        self.lines.append(f"{name} = {text}")
        return self.add(Value(name, tensor, bound, states))

    def add(self, value: Value) -> Value:
        self.names[value.text] = value.tensor
        self.values.append(value)
        return value

    def pick(self, wanted: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """A value, the latest most likely."""
        fitting = [each for each in self.values if wanted(each)]
        if not fitting:
            return None
        return fitting[max(self.rng.randrange(len(fitting)) for _ in range(2))]

    def dim(self, x: Value, name: str) -> str:
        """An axis as an author may write it: a name, a position, or a negative position."""
        at = x.type.names.index(name)
        return self.rng.choice([repr(name), repr(name), str(at + 1), str(at - len(x.type.axes))])

    def axis(self, x: Value, sized: bool = False) -> str | None:
        names = [axis.name for axis in x.type.axes if axis.size is not None or not sized]
        return self.rng.choice(names) if names else None


Step = Callable[[Writer], Value | None]
STEPS: list[tuple[int, Step]] = []


def step(weight: int) -> Callable[[Step], Step]:
    def add(made: Step) -> Step:
        STEPS.append((weight, made))
        return made

    return add


def is_float(value: Value) -> bool:
    return value.is_float


def with_axes(value: Value) -> bool:
    return value.is_float and bool(value.type.axes)


@step(6)
def unary(w: Writer) -> Value | None:
    x = w.pick(is_float)
    if x is None:
        return None
    t, m = x.text, x.bound
    text, bound = w.rng.choice([
        (f"Exp(Minimum({t}, 2.0))", 8.0), (f"Log(Abs({t}) + 0.5)", max(1.0, math.log(m + 0.5))),
        (f"Sqrt(Abs({t}))", math.sqrt(m)), (f"Rsqrt(Abs({t}) + 0.5)", 1.5), (f"Sigmoid({t})", 1.0),
        (f"Silu({t})", m), (f"Tanh({t})", 1.0), (f"Abs({t})", m), (f"abs({t})", m), (f"-{t}", m), (f"Neg({t})", m),
        (f"Relu({t})", m),
    ])  # fmt: skip
    return w.define(text, bound, (x,))


@step(10)
def binary(w: Writer) -> Value | None:
    a, b = w.pick(is_float), w.pick(is_float)
    if a is None or b is None or a is b:
        return None
    s, t, m, n = a.text, b.text, a.bound, b.bound
    number = w.rng.choice(["0.5", "-1.25", "2", "3.0"])
    text, bound = w.rng.choice([
        (f"{s} + {t}", m + n), (f"{s} - {t}", m + n), (f"{s} * {t}", m * n), (f"{s} * {t}", m * n),
        (f"{s} / (Abs({t}) + 0.5)", 2 * m), (f"Maximum({s}, {t})", max(m, n)), (f"Minimum({s}, {t})", max(m, n)),
        (f"{s} + {number}", m + 3), (f"{number} - {s}", m + 3), (f"{s} * {number}", 3 * m), (f"{s} ** 2", m * m),
        (f"(Abs({s}) + 0.5) ** 0.5", math.sqrt(m + 1)), (f"Add({s}, {t})", m + n), (f"Sub({s}, {t})", m + n),
        (f"Mul({s}, {number})", 3 * m), (f"Div({s}, 4)", m), (f"Pow(Tanh({s}), 2)", 1.0),
    ])  # fmt: skip
    return w.define(text, bound, (a, b))


@step(2)
def chosen(w: Writer) -> Value | None:
    flag, a, b = w.pick(lambda each: each.type.dtype == "bool"), w.pick(is_float), w.pick(is_float)
    if flag is None or a is None or b is None:
        return None
    other = w.rng.choice([b.text, "0.0", "-1.5"])
    return w.define(f"Where({flag.text}, {a.text}, {other})", max(a.bound, b.bound, 1.5), (flag, a, b))


@step(2)
def compared(w: Writer) -> Value | None:
    a, b = w.pick(is_float), w.pick()
    if a is None or b is None or a is b:
        return None
    sign = w.rng.choice(["<", "<=", ">", ">=", "==", "!="])
    named = {
        "<": "Less",
        "<=": "LessEqual",
        ">": "Greater",
        ">=": "GreaterEqual",
        "==": "Equal",
        "!=": "NotEqual",
    }
    other = w.rng.choice([b.text, "0.37", "-0.21"])
    text = f"{a.text} {sign} {other}" if w.rng.random() < 0.7 else f"{named[sign]}({a.text}, {other})"
    return w.define(text, 1.0, (a, b))


@step(4)
def logic(w: Writer) -> Value | None:
    a = w.pick(lambda each: each.type.dtype == "bool")
    b = w.pick(lambda each: each.type.dtype == "bool")
    if a is None or b is None:
        return None
    text = w.rng.choice([f"{a.text} & {b.text}", f"{a.text} | {b.text}", f"{a.text} ^ {b.text}", f"~{a.text}",
                         f"And({a.text}, {b.text})", f"Or({a.text}, ~{b.text})", f"Xor({a.text}, {b.text})",
                         f"Not({a.text})"])  # fmt: skip
    return w.define(text, 1.0, (a, b))


@step(3)
def integers(w: Writer) -> Value | None:
    x = w.pick(lambda each: each.type.dtype == "int32")
    if x is None:
        return None
    number = w.rng.choice([1, 2, 3, 5])
    text = w.rng.choice([f"{x.text} // {number}", f"{x.text} % {number + 1}", f"FloorDiv({x.text}, {number})",
                         f"Mod({x.text}, {number + 1})", f"{x.text} + {number}", f"Abs({x.text} - {number})",
                         f"Maximum({x.text}, {number})"])  # fmt: skip
    return w.define(text, x.bound + 5, (x,))


@step(6)
def product(w: Writer) -> Value | None:
    a, b = w.pick(with_axes), w.pick(with_axes)
    if a is None or b is None:
        return None
    right = w.rng.choice([b.text, f"{b.text}.T" if len(b.type.axes) > 1 else b.text])
    text = w.rng.choice([f"GeMM({a.text}, {right})", f"{a.text} @ {right}"])
    longest = a.size(a.type.axes[-1].name)
    return w.define(text, a.bound * b.bound * longest, (a, b))


REDUCTIONS = {"Sum": 1.0, "Mean": 0.0, "Max": 0.0, "Min": 0.0, "L2Norm": 0.5}
"""Reduction -> the power of the axis' size by which it can grow a bound."""


def reduction(w: Writer, x: Value, names: tuple[str, ...], op: str | None = None) -> Value | None:
    """A reduction over axes; over `block`, which may be empty, its value is made finite."""
    op = op or w.rng.choice(list(REDUCTIONS))
    dims = [w.dim(x, name) for name in names]
    dim = dims[0] if len(dims) == 1 else f"({', '.join(dims)})"
    text = f"{op}({x.text}, dim={dim})"
    if w.rng.random() < 0.2 and names == x.type.names[-1:] and names != ("block",) and op != "L2Norm":
        text = f"{op}({x.text})"
        if "token" in x.type.names and w.recorder.which == "cache":
            names = ("token",)
    size = math.prod(x.size(name) for name in names)
    if "block" in names and op in ("Max", "Min"):
        text = f"Maximum(Minimum({text}, {x.bound:.3g}), -{x.bound:.3g})"
    elif "block" in names and op == "Mean":
        text = f"Sum({x.text}, dim={dim}) / {float(size)}"
    return w.define(text, x.bound * size ** REDUCTIONS[op] + 1e-3, (x,))


@step(8)
def reduced(w: Writer) -> Value | None:
    x = w.pick(with_axes)
    if x is None:
        return None
    names = w.rng.sample(x.type.names, min(len(x.type.axes), w.rng.choice([1, 1, 1, 2])))
    return reduction(w, x, tuple(names))


@step(2)
def argument(w: Writer) -> Value | None:
    x = w.pick(with_axes)
    if x is None:
        return None
    name = w.axis(x) or ""
    return w.define(
        f"{w.rng.choice(['ArgMax', 'ArgMin'])}({x.text}, dim={w.dim(x, name)})", x.size(name), (x,)
    )


@step(4)
def row(w: Writer) -> Value | None:
    x = w.pick(with_axes)
    if x is None:
        return None
    name = w.axis(x) or ""
    dim, t, m = w.dim(x, name), x.text, x.bound
    pair = tuple(w.rng.sample(x.type.names, min(2, len(x.type.axes))))
    text, bound = w.rng.choice([
        (f"Softmax({t}, dim={dim})", 1.0), (f"Softmax({t}, dim={pair!r})", 1.0), (f"Normalize({t}, dim={dim})", 1.0),
        (f"CumSum({t}, dim={dim})", m * x.size(name)), (f"Conv1d({t}, [0.25, 0.5, -0.25], dim={dim})", m),
        (f"Conv1d({t}, (1.0, 0.5), dim={dim})", 2 * m), (f"MaxPool1d(Maximum({t}, -9.0), 3, dim={dim})", max(m, 9.0)),
        (f"MaxPool1d(Maximum({t}, -9.0), size=2, dim={dim})", max(m, 9.0)),
    ])  # fmt: skip
    return w.define(text, bound, (x,))


@step(6)
def rearranged(w: Writer) -> Value | None:
    x = w.pick(with_axes)
    if x is None:
        return None
    name = w.axis(x, sized=True)
    if name is None:
        return None
    size, t = x.size(name), x.text
    colons = ", ".join([":"] * (x.type.names.index(name) + 1))
    order = ", ".join(map(repr, w.rng.sample(x.type.names, len(x.type.axes))))
    fresh = f"w{w.count}"
    factors = [each for each in range(1, size + 1) if size % each == 0]
    factor = w.rng.choice(factors)
    pair = [axis.name for axis in x.type.axes if axis.size is not None]
    options = [
        f"{t}.T", f"Transpose({t}, {order})", f"{t}[{colons}, {w.rng.randrange(size)}]",
        f"{t}[{colons}, {w.rng.randrange(size)}:]", f"{t}[{colons}, ::2]", f"Rename({t}, {name}={fresh!r})",
        f"Split({t}, {name!r}, {fresh}={factor}, {name}={size // factor})", f"Concat({t}, {t}, dim={name!r})",
    ]  # fmt: skip
    if len(pair) > 1:
        a, b = w.rng.sample(pair, 2)
        options += [f'Merge({t}, {a!r}, {b!r}, to="{fresh}")'] * 2
    return w.define(w.rng.choice(options), x.bound, (x,))


@step(1)
def joined(w: Writer) -> Value | None:
    a, b = w.pick(with_axes), w.pick(with_axes)
    if a is None or b is None:
        return None
    shared = [axis.name for axis in a.type.axes if axis.size is not None and axis.name in b.type.names]
    if not shared:
        return None
    return w.define(
        f"Concat({a.text}, {b.text}, dim={w.rng.choice(shared)!r})", max(a.bound, b.bound), (a, b)
    )


@step(2)
def cast(w: Writer) -> Value | None:
    x = w.pick(is_float)
    if x is None:
        return None
    to = w.rng.choice(["bf16", "fp16", "fp8", "int8", "int4", "sign", "int32", "bool", "fp32"])
    return w.define(f'Cast({x.text}, "{to}")', x.bound * 1.2 + 1, (x,))


@step(2)
def picked(w: Writer) -> Value | None:
    """Members of an axis other than block: by an index set, or by integers."""
    x = w.pick(with_axes)
    y = w.pick(lambda each: each.is_float and bool(each.type.axes))
    if x is None or y is None:
        return None
    name = w.axis(y, sized=True)
    if name is None or name not in x.type.names:
        return None
    size = y.size(name)
    if w.rng.random() < 0.6:
        members = f"topK({y.text}, dim={w.dim(y, name)}, k={w.rng.randint(1, size)})"
        return w.define(f"Gather({x.text}, {members})", x.bound, (x, y))
    ids = w.pick(lambda each: each.type.dtype == "int32")
    if ids is None:
        return None
    return w.define(f"Gather({x.text}, {ids.text}, dim={name!r})", x.bound, (x, ids))
