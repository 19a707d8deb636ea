"""Budgets and layer lists: the small expressions of a flow's hyper-parameters.

A budget is the total number of attended blocks of one (request, KV head), as an expression over

    blocks      ceil(tokens / block_size)
    tokens      length of the request, the newest token included
    block_size  tokens of a block
    layer       number of the layer, from 0
    layers      number of layers

with + - * /, a percent suffix on number literals (`12.5%`), min, max, floor and ceil. Values are exact
rationals with one final ceil, so host and kernel never disagree. Text is parsed, never evaluated by Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vortex.dsl.expression import Node, PolicyError, Range, parse_budget, parse_layers
from vortex.dsl.rational import MAX_TOKENS, Place, Text, ceiling, check, zero_divisor

__all__ = ["MAX_TOKENS", "Budget", "Layers", "PolicyError"]


@dataclass(frozen=True)
class Budget:
    """How many blocks of a (request, KV head) are attended in all; made by `parse`."""

    text: str
    root: Node

    @staticmethod
    def parse(source: str | int) -> Budget:
        """Reads an integer or an expression.

        Raises PolicyError: not in the language, a divisor that can be zero, or values that could leave
        64 bits in a kernel for some length up to MAX_TOKENS.
        """
        if isinstance(source, bool) or not isinstance(source, (int, str)):
            raise PolicyError(
                f"a budget is an integer or an expression, not {source!r}",
                'write a number of blocks, or a share of them such as "12.5% * blocks"',
            )
        if isinstance(source, str):
            budget = Budget(source, parse_budget(source))
        else:
            budget = Budget(str(source), Node("number", value=Fraction(source), end=len(str(source))))
        if budget.root.op == "number" and budget.root.value < 0:
            raise PolicyError(f"a budget of {source} blocks", "write 0 or more", 0, len(budget.text))
        check(budget.root)
        return budget

    def __str__(self) -> str:
        return self.text

    def evaluate(self, *, tokens: int, block_size: int, layer: int = 0, layers: int = 1) -> int:
        """Blocks for a request of `tokens`: at least 0, for `attended = min(blocks, max(budget, reserved))`.

        A padded slot of 0 tokens has a budget of 0. Raises PolicyError where a divisor is zero at this
        layer, ValueError for arguments out of range.
        """
        place = Place(block_size, layer, layers)
        if not 0 <= tokens <= MAX_TOKENS:
            raise ValueError(f"tokens: 0 to {MAX_TOKENS} are expected, got {tokens}")
        if tokens == 0:
            return 0
        values = {"tokens": tokens, "blocks": -(-tokens // block_size)}
        return max(0, math.ceil(_value(self.root, values | place.values)))

    def device_source(
        self,
        *,
        block_size: int,
        layer: int = 0,
        layers: int = 1,
        blocks: str = "blocks",
        tokens: str = "tokens",
        minimum: str = "min",
        maximum: str = "max",
    ) -> str:
        """`evaluate` as integer source text over int64 scalars, valid in Python and in Triton.

        blocks, tokens: names of the scalars, for 1 <= tokens <= MAX_TOKENS; minimum, maximum: names of the
        two-argument functions (`tl.minimum`). Exact whether // floors or truncates. For a padded slot of 0
        tokens the value means nothing; the attended formula yields 0 there.
        """
        place = Place(block_size, layer, layers)
        names = (Text(blocks), Text(tokens))
        return str(ceiling(self.root, place, *names, _call(minimum), _call(maximum)))

    def is_constant(self, *, block_size: int, layer: int = 0, layers: int = 1) -> bool:
        """Whether the budget is provably the same at every length; its text is then a number."""
        text = self.device_source(block_size=block_size, layer=layer, layers=layers)
        return text.isdecimal()

    def covers(self, max_tokens: int, block_size: int, layer: int = 0, layers: int = 1) -> bool:
        """Whether every block is attended at every length from 1 to `max_tokens`: all of them are tried."""
        place = Place(block_size, layer, layers)
        most = self.evaluate(tokens=max_tokens, **place.values)
        if most < -(-max_tokens // block_size):
            return False
        if self.is_constant(**place.values):
            return True
        import numpy as np

        chunk = 1 << 20
        for first in range(1, max_tokens + 1, chunk):
            tokens = np.arange(first, min(first + chunk, max_tokens + 1), dtype=np.int64)
            blocks = (tokens + block_size - 1) // block_size
            if (ceiling(self.root, place, blocks, tokens, np.minimum, np.maximum) < blocks).any():
                return False
        return True

    def most(self, max_tokens: int, block_size: int, layer: int = 0, layers: int = 1) -> int:
        """The largest budget of any length from 1 to `max_tokens`: what a table of attended blocks must hold."""
        place = Place(block_size, layer, layers)
        if self.is_constant(**place.values):
            return self.evaluate(tokens=max_tokens, **place.values)
        import numpy as np

        most, chunk = 0, 1 << 20
        for first in range(1, max_tokens + 1, chunk):
            tokens = np.arange(first, min(first + chunk, max_tokens + 1), dtype=np.int64)
            blocks = (tokens + block_size - 1) // block_size
            most = max(most, int(np.max(ceiling(self.root, place, blocks, tokens, np.minimum, np.maximum))))
        return most


@dataclass(frozen=True)
class Layers:
    """Layer numbers and ranges: `"0-1, 5, 30-"`. `-1` is the last layer, `-2-` are the last two."""

    text: str
    ranges: tuple[Range, ...]

    @staticmethod
    def parse(source: str | int | Iterable[int]) -> Layers:
        """Reads a list; a number or a collection of numbers is taken as well. Raises PolicyError."""
        if isinstance(source, int) and not isinstance(source, bool):
            source = str(source)
        elif isinstance(source, Iterable) and not isinstance(source, str):
            source = ", ".join(str(number) for number in source)
        if not isinstance(source, str):
            raise PolicyError(
                f"layers are numbers and ranges, not {source!r}", 'write for example "0-1, 30-"'
            )
        return Layers(source, parse_layers(source))

    def __str__(self) -> str:
        return self.text

    def numbers(self, layers: int) -> frozenset[int]:
        """The layers meant, of a model with `layers` of them. Raises PolicyError for one it does not have."""
        found: set[int] = set()
        for item in self.ranges:
            first, last = (edge + layers if edge < 0 else edge for edge in (item.first, item.last))
            name = repr(self.text[item.start : item.end])
            if not (0 <= first < layers and 0 <= last < layers):
                message = f"{name} names a layer that a model of {layers} layers does not have"
                remedy = f"write numbers from 0 to {layers - 1}, or -1 for the last"
                raise PolicyError(message, remedy, item.start, item.end)
            if first > last:
                raise PolicyError(f"the range {name} is empty", f"write {last}-{first}", item.start, item.end)
            found.update(range(first, last + 1))
        return frozenset(found)


def _call(function: str) -> Callable[[Any, Any], Text]:
    return lambda a, b: Text(f"{function}({a}, {b})")


def _value(node: Node, values: dict[str, int]) -> Fraction:
    if node.op == "number":
        return node.value
    if node.op == "variable":
        return Fraction(values[node.name])
    args = [_value(arg, values) for arg in node.args]
    match node.op:
        case "neg":
            return -args[0]
        case "add":
            return args[0] + args[1]
        case "sub":
            return args[0] - args[1]
        case "mul":
            return args[0] * args[1]
        case "div":
            if not args[1]:
                raise zero_divisor(node.args[1])
            return args[0] / args[1]
        case "floor":
            return Fraction(math.floor(args[0]))
        case "ceil":
            return Fraction(math.ceil(args[0]))
        case "min":
            return min(args)
        case "max":
            return max(args)
    raise AssertionError(node.op)
