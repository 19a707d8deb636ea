"""Breaks long generated statements over several lines, inside of their brackets."""

from __future__ import annotations

from collections.abc import Iterator

WIDTH = 110
OPENING, CLOSING = "([", ")]"
OPERATORS = (" | ", " & ", " + ", " * ")
"""Where an expression may be broken, loosest first."""


def wrap(statement: str, indent: int = 0) -> str:
    """A statement (and its comment, which stays on the first line), its further lines indented as well."""
    code, mark, comment = statement.partition("  # ")
    lines = list(_broken(code, WIDTH - indent))
    lines[0] += mark + comment
    return ("\n" + " " * indent).join(lines)


def _broken(code: str, room: int) -> Iterator[str]:
    """Lines of a statement or of the end of one: broken inside its longest bracket."""
    start, stop = max(_brackets(code), key=lambda pair: pair[1] - pair[0], default=(0, 0))
    if len(code) <= room or stop <= start + 1:
        yield code
        return
    yield code[: start + 1]
    inner = _split(code[start + 1 : stop], ", ")
    for part in inner:
        comma = "," if len(inner) > 1 and not part.endswith(",") else ""
        for line in _inside(part + comma, room - 4):
            yield f"    {line}"
    yield code[stop:]


def _inside(code: str, room: int) -> Iterator[str]:
    """Lines of what stands between brackets, where it may be broken before an operator too."""
    for operator in OPERATORS if len(code) > room else ():
        first, *rest = _split(code, operator)
        if rest:
            yield from _inside(first, room)
            for part in rest:
                yield from _inside(f"{operator.lstrip()}{part}", room)
            return
    yield from _broken(code, room)


def _depths(code: str) -> Iterator[int]:
    """How many brackets are open before each character."""
    depth = 0
    for character in code:
        depth -= character in CLOSING
        yield depth
        depth += character in OPENING


def _brackets(code: str) -> list[tuple[int, int]]:
    """Positions of the outermost brackets."""
    depths = list(_depths(code))
    opening = [at for at, each in enumerate(code) if each in OPENING and depths[at] == 0]
    closing = [at for at, each in enumerate(code) if each in CLOSING and depths[at] == 0]
    return list(zip(opening, closing, strict=True))


def _split(code: str, separator: str) -> list[str]:
    """Parts between the separators that stand in no bracket."""
    depths = list(_depths(code))
    parts, start = [], 0
    at = code.find(separator)
    while at >= 0:
        if depths[at] == 0:
            parts.append(code[start:at])
            start = at + len(separator)
        at = code.find(separator, at + 1)
    return [*parts, code[start:]]
