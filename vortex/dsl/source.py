"""The author's file as text: where classes, attributes and methods stand in it."""

from __future__ import annotations

import ast
import traceback
from dataclasses import dataclass
from functools import cached_property

from vortex.dsl.ir import Location


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

    def _class(self, name: str) -> ast.ClassDef | None:
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef) and node.name == name]
        return found[-1] if found else None

    def flow(self, name: str) -> Location | None:
        """The `class Name` of a flow."""
        node = self._class(name)
        if node is None:
            return None
        return Location(node.lineno, node.col_offset + 1, node.lineno, node.col_offset + 7 + len(name))

    def method(self, flow: str, name: str) -> Location | None:
        """The `def name` of a method, or the flow where it is inherited."""
        node = self._class(flow)
        for each in node.body if node is not None else ():
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name:
                column = each.col_offset + 1
                return Location(each.lineno, column, each.lineno, column + 4 + len(name))
        return self.flow(flow)

    def attribute(self, flow: str, key: str, span: tuple[int, int] | None = None) -> Location | None:
        """The value of `key = value` in a class body; `span` narrows it to columns within a string literal."""
        node = self._class(flow)
        for each in node.body if node is not None else ():
            if isinstance(each, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == key for t in each.targets
            ):
                return self._value(each.value, span)
            if (
                isinstance(each, ast.AnnAssign)
                and isinstance(each.target, ast.Name)
                and each.target.id == key
            ):
                return self._value(each.value, span) if each.value is not None else place_of(each)
        return None

    def _value(self, value: ast.expr, span: tuple[int, int] | None) -> Location:
        whole = place_of(value)
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
        frames = [
            (frame, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_code.co_filename == self.path
        ]
        if not frames:
            return None
        summary = traceback.StackSummary.extract(iter(frames[-1:]), lookup_lines=False)[0]
        line = summary.lineno or 1
        column = (getattr(summary, "colno", None) or 0) + 1
        end = (getattr(summary, "end_colno", None) or column) + 1
        return Location(line, column, getattr(summary, "end_lineno", None) or line, end)


def place_of(node: ast.stmt | ast.expr) -> Location:
    return Location(
        node.lineno, node.col_offset + 1, node.end_lineno or node.lineno, (node.end_col_offset or 0) + 1
    )
