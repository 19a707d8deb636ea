"""What every operator computes, written out element by element in numpy; no code of Vortex takes part."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Index = dict[str, int]


@dataclass
class Named:
    """An array whose axes have names."""

    array: np.ndarray
    names: tuple[str, ...]

    def at(self, index: Index) -> Any:
        return self.array[tuple(index[name] for name in self.names)]

    def sizes(self) -> dict[str, int]:
        return dict(zip(self.names, self.array.shape, strict=True))


def indices(sizes: dict[str, int]) -> Any:
    return (dict(zip(sizes, each, strict=True)) for each in itertools.product(*map(range, sizes.values())))


def filled(names: tuple[str, ...], sizes: dict[str, int], value: Callable[[Index], Any]) -> Named:
    shape = [sizes[name] for name in names]
    out = np.zeros(shape, dtype=object)
    for index in indices({name: sizes[name] for name in names}):
        out[tuple(index[name] for name in names)] = value(index)
    return Named(out, names)


def all_sizes(operands: list[Named]) -> dict[str, int]:
    return {name: size for each in operands for name, size in each.sizes().items()}


def elementwise(function: Callable[..., Any]) -> Callable[..., Named]:
    def compute(operands: list[Named], names: tuple[str, ...], **attrs: Any) -> Named:
        return filled(names, all_sizes(operands), lambda at: function(*(each.at(at) for each in operands)))

    return compute


def reduction(function: Callable[[list[Any]], Any]) -> Callable[..., Named]:
    def compute(operands: list[Named], names: tuple[str, ...], dim: tuple[str, ...], **attrs: Any) -> Named:
        (x,) = operands
        sizes = x.sizes()
        inner = {name: sizes[name] for name in dim}
        return filled(names, sizes, lambda at: function([x.at({**at, **each}) for each in indices(inner)]))

    return compute


def along(function: Callable[..., list[Any]]) -> Callable[..., Named]:
    """A function of the vector along `dim` (axes of a tuple taken together) to a vector of that length."""

    def compute(operands: list[Named], names: tuple[str, ...], dim: Any, **attrs: Any) -> Named:
        (x,) = operands
        sizes = x.sizes()
        dims = dim if isinstance(dim, tuple) else (dim,)
        inner = {name: sizes[name] for name in dims}

        def value(at: Index) -> Any:
            rows = list(indices(inner))
            vector = function([x.at({**at, **each}) for each in rows], **attrs)
            return vector[rows.index({name: at[name] for name in dims})]

        return filled(names, sizes, value)

    return compute


def product(operands: list[Named], names: tuple[str, ...], **attrs: Any) -> Named:
    a, b = operands
    over = a.names[-1]
    other = b.names[-2] if len(b.names) > 1 else b.names[-1]
    sizes = {**b.sizes(), **a.sizes()}
    for name in names:
        if name == over:  # the contracted name also stands for a column of b
            sizes[name] = b.sizes()[name]

    def value(at: Index) -> Any:
        total = 0.0
        for t in range(a.sizes()[over]):
            left = {**at, over: t}
            right = {**at, other: t}
            total += float(a.at(left)) * float(b.at(right))
        return total

    return filled(names, sizes, value)


# numbers


def sigmoid(x: float) -> float:
    return 1 / (1 + np.exp(-np.float64(x)))


def larger(a: Any, b: Any) -> Any:
    return math.nan if a != a or b != b else max(a, b)


def smaller(a: Any, b: Any) -> Any:
    return math.nan if a != a or b != b else min(a, b)


def largest(values: list[Any]) -> Any:
    return math.nan if any(v != v for v in values) else max(values, default=-math.inf)


def smallest(values: list[Any]) -> Any:
    return math.nan if any(v != v for v in values) else min(values, default=math.inf)


def best_position(worst: float) -> Callable[[list[Any]], int]:
    def find(values: list[Any]) -> int:
        if not values:
            return -1
        clean = [worst if v != v else v for v in values]
        return clean.index(max(clean) if worst < 0 else min(clean))

    return find


def softmax(values: list[Any]) -> list[Any]:
    top = largest(values)
    if top == -math.inf:
        return [0.0] * len(values)
    weights = [float(np.exp(np.float64(v) - top)) for v in values]
    return [w / sum(weights) for w in weights]


def normalized(values: list[Any]) -> list[Any]:
    norm = math.sqrt(sum(float(v) ** 2 for v in values))
    return [float(v) / norm if norm else float(v) for v in values]


def cumulated(values: list[Any]) -> list[Any]:
    return [sum(map(float, values[: i + 1])) for i in range(len(values))]


def convolved(values: list[Any], weights: tuple[float, ...]) -> list[Any]:
    before = (len(weights) - 1) // 2
    return [sum(w * float(values[i + j - before]) for j, w in enumerate(weights) if 0 <= i + j - before < len(values))
            for i in range(len(values))]  # fmt: skip


def pooled(values: list[Any], size: int) -> list[Any]:
    before = (size - 1) // 2
    return [largest([values[i + j - before] for j in range(size) if 0 <= i + j - before < len(values)])
            for i in range(len(values))]  # fmt: skip


def integer(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Division of integers, 0 where the divisor is 0; floats as numpy has them."""

    def divide(a: Any, b: Any) -> Any:
        if isinstance(a, float | np.floating) or isinstance(b, float | np.floating):
            return operation(np.float64(a), np.float64(b))
        return 0 if int(b) == 0 else operation(int(a), int(b))

    return divide


def nearest_of(table: list[float], x: float) -> float:
    """The nearest value of an ascending table of a float format, ties to the even mantissa (even position)."""
    at = min(range(len(table)), key=lambda i: (abs(table[i] - x), i % 2))
    return table[at]


E4M3 = sorted({(m / 8) * 2.0**-6 for m in range(8)} | {
    (1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8) if (1 + m / 8) * 2.0**e <= 448})  # fmt: skip


def cast(x: Any, to: str, row: list[Any]) -> Any:
    """`x` through a storage dtype; `row` is the last axis that it stands in."""
    v = float(x)
    if to == "fp32":
        return float(np.float32(v))
    if to == "fp16":
        return float(np.float16(v))
    if to == "bf16":
        bits = int(np.float32(v).view(np.uint32))
        if v != v:
            return v
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
        return float(np.uint32(bits & 0xFFFFFFFF).view(np.float32))
    if to == "fp8":
        return math.copysign(nearest_of(E4M3, min(abs(v), 448.0)), v)
    if to == "sign":
        return 1.0 if v >= 0 else -1.0
    if to == "int32":
        return int(v)
    if to == "bool":
        return v != 0
    limit = {"int8": 127, "int4": 7}[to]
    scale = float(np.float16(np.float32(max(abs(float(each)) for each in row) / limit)))
    return 0.0 if scale == 0 else max(-limit, min(limit, round(v / scale))) * scale


def casts(operands: list[Named], names: tuple[str, ...], to: str) -> Named:
    (x,) = operands
    sizes = x.sizes()

    def value(at: Index) -> Any:
        last = names[-1] if names else ""
        row = [x.at({**at, last: i}) for i in range(sizes[last])] if names else [x.at(at)]
        return cast(x.at(at), to, row)

    return filled(names, sizes, value)


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Exp": lambda x: np.exp(np.float64(x)), "Log": np.log, "Sqrt": lambda x: np.sqrt(np.float64(x)),
    "Rsqrt": lambda x: 1 / np.sqrt(np.float64(x)), "Sigmoid": sigmoid,
    "Silu": lambda x: x * sigmoid(x), "Tanh": np.tanh, "Abs": abs, "Neg": lambda x: -x if x.dtype != bool else -int(x),
    "Relu": lambda x: x if x != x else max(x, 0),
    "Maximum": larger, "Minimum": smaller, "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b, "Div": lambda a, b: np.float64(a) / np.float64(b),
    "FloorDiv": integer(np.floor_divide), "Mod": integer(np.mod), "Pow": lambda a, b: np.float_power(a, b),
    "Less": lambda a, b: a < b, "LessEqual": lambda a, b: a <= b, "Greater": lambda a, b: a > b,
    "GreaterEqual": lambda a, b: a >= b, "Equal": lambda a, b: a == b, "NotEqual": lambda a, b: a != b,
    "And": lambda a, b: a & b, "Or": lambda a, b: a | b, "Xor": lambda a, b: a ^ b, "Not": lambda x: not x,
    "Where": lambda condition, a, b: a if condition else b,
}  # fmt: skip

ORACLES: dict[str, Callable[..., Named]] = {
    **{name: elementwise(function) for name, function in ELEMENTWISE.items()},
    "Cast": casts,
    "GeMM": product,
    "Sum": reduction(lambda values: sum(values)),
    "Mean": reduction(lambda values: sum(map(float, values)) / len(values) if values else math.nan),
    "Max": reduction(largest),
    "Min": reduction(smallest),
    "L2Norm": reduction(lambda values: math.sqrt(sum(float(v) ** 2 for v in values))),
    "ArgMax": reduction(best_position(-math.inf)),
    "ArgMin": reduction(best_position(math.inf)),
    "Softmax": along(softmax),
    "Normalize": along(normalized),
    "CumSum": along(cumulated),
    "Conv1d": along(convolved),
    "MaxPool1d": along(pooled),
}
