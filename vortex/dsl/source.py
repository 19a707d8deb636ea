"""The author's file as text: where classes, attributes and methods stand in it."""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import dataclass
from functools import cached_property
from types import CodeType

from vortex.dsl.ir import Location


def python_lines(text: str) -> list[str]:
    """The lines of a text as Python counts them, without their ends."""
    return re.split(r"\r\n|\r|\n", text)


@dataclass(frozen=True)
class Source:
    """A file's path, as frames name it, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module([], [])

    @cached_property
    def _lines(self) -> list[bytes]:
        return [line.encode("utf-8", "surrogatepass") for line in python_lines(self.text)]

    @cached_property
    def calls(self) -> dict[Location, str]:
        """What each call in the file calls, as written: `max`, `math.sqrt`; other callees are left out."""
        return {
            self.place_of(node): ast.unparse(node.func)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
        }

    def location(self, line: int, column: int, end_line: int | None, end_column: int | None) -> Location:
        """A place as Python's compiler counts it: 1-based lines, 0-based columns in bytes of UTF-8."""
        end_line = end_line or line
        start = self._characters(line, column)
        stop = start + 1 if end_column is None else self._characters(end_line, end_column)
        return Location(line, start + 1, end_line, stop + 1)

    def _characters(self, line: int, column: int) -> int:
        if not 0 < line <= len(self._lines) or self._lines[line - 1].isascii():
            return column
        return len(self._lines[line - 1][:column].decode("utf-8", "replace"))

    def place_of(self, node: ast.stmt | ast.expr) -> Location:
        return self.location(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)

    def instruction(self, code: CodeType, offset: int, line: int) -> Location:
        """The expression that the instruction at `offset` of a code object of this file belongs to."""
        span = next(itertools.islice(code.co_positions(), offset // 2, None), (None,) * 4)
        first, last, column, end_column = span
        if first is None or column is None:
            return Location(line, 1, line, 2)
        place = self.location(first, column, last, end_column)
        return self._loops.get(place, place)

    @cached_property
    def _loops(self) -> dict[Location, Location]:
        """A `for` statement, which some versions of Python blame as a whole -> what it iterates over."""
        loops = [node for node in ast.walk(self.tree) if isinstance(node, ast.For)]
        return {self.place_of(node): self.place_of(node.iter) for node in loops}

    def _class(self, name: str) -> ast.ClassDef | None:
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef) and node.name == name]
        return found[-1] if found else None

    def flow(self, name: str) -> Location | None:
        """The `class Name` of a flow."""
        node = self._class(name)
        return None if node is None else self._head(node, f"class {name}")

    def _head(self, node: ast.stmt, text: str) -> Location:
        start = self.location(node.lineno, node.col_offset, node.lineno, None)
        return Location(start.line, start.column, start.line, start.column + len(text))

    def method(self, flow: str, name: str) -> Location | None:
        """The `def name` of a method, or the flow where it is inherited."""
        node = self._class(flow)
        for each in node.body if node is not None else ():
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name:
                keyword = "def" if isinstance(each, ast.FunctionDef) else "async def"
                return self._head(each, f"{keyword} {name}")
        return self.flow(flow)

    def attribute(self, flow: str, key: str, span: tuple[int, int] | None = None) -> Location | None:
        """The value of `key = value` in a class body; `span` narrows it to columns within a string literal."""
        node = self._class(flow)
        for each in reversed(node.body) if node is not None else ():
            targets: list[ast.expr] = []
            if isinstance(each, ast.Assign):
                targets = each.targets
            elif isinstance(each, ast.AnnAssign):
                targets = [each.target]
            if any(isinstance(target, ast.Name) and target.id == key for target in targets):
                value = each.value  # type: ignore[attr-defined]
                return self._value(value, span) if value is not None else self.place_of(each)
        return None

    def _value(self, value: ast.expr, span: tuple[int, int] | None) -> Location:
        whole = self.place_of(value)
        plain = (
            isinstance(value, ast.Constant)
            and isinstance(value.value, str)
            and value.lineno == value.end_lineno
        )
        if span is None or not plain:
            return whole
        # A caret into the expression is only exact where the literal is the text itself between two quotes.
        if whole.end_column - whole.column != len(value.value) + 2:  # type: ignore[attr-defined]
            return whole
        start, end = span
        return Location(
            whole.line, whole.column + 1 + start, whole.line, whole.column + 1 + max(end, start + 1)
        )

    def raised(self, error: BaseException) -> Location | None:
        """The innermost line of this file that an exception passed through."""
        found = None
        step = error.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename == self.path:
                found = self.instruction(step.tb_frame.f_code, step.tb_lasti, step.tb_lineno or 1)
            step = step.tb_next
        return found
