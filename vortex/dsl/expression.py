"""The text of budgets and layer lists: grammar, syntax tree and the errors that point into it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

VARIABLES = ("blocks", "tokens", "block_size", "layer", "layers")
FUNCTIONS = ("min", "max", "floor", "ceil")
MAX_TEXT = 256


class PolicyError(ValueError):
    """A budget or layer list that means nothing.

    message: what is wrong; remedy: what to write instead; start, end: the half-open range of characters
    of the expression that it is about.
    """

    def __init__(self, message: str, remedy: str, start: int = 0, end: int = 0) -> None:
        super().__init__(f"{message}; {remedy}")
        self.message = message
        self.remedy = remedy
        self.start = start
        self.end = max(end, start + 1)


@dataclass(frozen=True)
class Node:
    """An expression: `op` is "number", "variable", an arithmetic operator or a function.

    start, end: where it stands in the text; expressions are equal wherever they stand.
    """

    op: str
    args: tuple[Node, ...] = ()
    value: Fraction = Fraction(0)
    name: str = ""
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Range:
    """Layers `first` to `last`, both included; negative numbers count from the end."""

    first: int
    last: int
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


def parse_budget(text: str) -> Node:
    """The syntax tree of a budget. Raises PolicyError."""
    return _build(_parse(text, "budget"))


def parse_layers(text: str) -> tuple[Range, ...]:
    """The ranges of a list of layers. Raises PolicyError."""
    return tuple(_range(item) for item in _parse(text, "layers").children if item is not None)


@cache
def _grammar() -> Lark:
    from lark import Lark

    starts = ["budget", "layers"]
    return Lark.open("policy.lark", rel_to=__file__, parser="lalr", start=starts, propagate_positions=True)


def _parse(text: str, start: str) -> Tree[Token]:
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    if len(text) > MAX_TEXT:
        raise PolicyError(f"{len(text)} characters of text", f"write at most {MAX_TEXT}", MAX_TEXT, len(text))
    try:
        return _grammar().parse(text, start=start)
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        word = text[at]
    except UnexpectedToken as error:
        ended = error.token.type == "$END"
        at, word = (len(text), "") if ended else (error.token.start_pos or 0, str(error.token))
    if not word:
        _refuse_end(text, start)
    remedy = _budget_remedy(text, at, word) if start == "budget" else 'write for example "0-1, 5, 30-"'
    raise PolicyError(f"{word!r} is not expected here", remedy, at, at + len(word))


def _refuse_end(text: str, start: str) -> NoReturn:
    if not text.strip():
        raise PolicyError("the expression is empty", "write a number of blocks")
    missing = "a number" if start == "layers" else "a number, a name or a closing parenthesis"
    raise PolicyError("the expression ends too early", f"write {missing} at the end", len(text))


def _budget_remedy(text: str, at: int, word: str) -> str:
    pair = text[max(at - 1, 0) : at + 1]
    if word == "%":
        left, right = re.search(r"[\w.]+(?=\s*$)", text[:at]), re.search(r"^\s*([\w.]+)", text[at + 1 :])
        a, b = left.group() if left else "a", right.group(1) if right else "b"
        percent = "% stands behind a number and means percent, as in 12.5% * blocks"
        return f"{percent}; a remainder is written {a} - {b} * floor({a} / {b})"
    if pair == "//":
        return "write floor(a / b)"
    if pair == "**" or word == "^":
        return "there are no powers: write the product"
    if word in "<>=!":
        return "there are no comparisons: write min(a, b) or max(a, b)"
    if word[0].isalnum() or word == "(":
        return "write an operator or a comma before it"
    return "write numbers, names, + - * /, min, max, floor and ceil"


def _build(tree: Any) -> Node:
    start, end = tree.meta.start_pos, tree.meta.end_pos
    if tree.data in ("number", "percent"):
        value = Fraction(str(tree.children[0])) / (100 if tree.data == "percent" else 1)
        return Node("number", value=value, start=start, end=end)
    if tree.data == "variable":
        name = str(tree.children[0])
        if name in FUNCTIONS:
            raise PolicyError(f"{name} is a function", f"write {name}(…)", start, end)
        if name not in VARIABLES:
            _unknown(name, "name", VARIABLES, start)
        return Node("variable", name=name, start=start, end=end)
    if tree.data == "call":
        return _call(tree, start, end)
    return Node(str(tree.data), tuple(_build(child) for child in tree.children), start=start, end=end)


def _call(tree: Any, start: int, end: int) -> Node:
    name = str(tree.children[0])
    if name in VARIABLES:
        raise PolicyError(f"{name} is no function", f"write {name} * (…)", start, start + len(name))
    if name not in FUNCTIONS:
        _unknown(name, "function", FUNCTIONS, start)
    args = tuple(_build(child) for child in tree.children[1:] if child is not None)
    single = name in ("floor", "ceil")
    if (len(args) != 1) if single else (len(args) < 2):
        form = f"{name}(a)" if single else f"{name}(a, b)"
        raise PolicyError(f"{name} with {len(args)} arguments", f"write {form}", start, end)
    return Node(name, args, start=start, end=end)


def _unknown(name: str, kind: str, known: tuple[str, ...], start: int) -> NoReturn:
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    raise PolicyError(f"unknown {kind} {name!r}", remedy, start, start + len(name))


def _range(item: Any) -> Range:
    edges = [_edge(edge) for edge in item.children]
    last = -1 if item.data == "onward" else edges[-1]
    return Range(edges[0], last, item.meta.start_pos, item.meta.end_pos)


def _edge(edge: Any) -> int:
    number = int(edge.children[0])
    if edge.data == "from_start":
        return number
    if number == 0:
        raise PolicyError(
            "-0 is no layer", "write 0, or -1 for the last", edge.meta.start_pos, edge.meta.end_pos
        )
    return -number
