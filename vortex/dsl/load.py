"""From a file to a traced program: runs the file, finds the flow, traces it.

Running a file executes its code. `check.py` does this in a child process under limits.
"""

from __future__ import annotations

import builtins
import dis
import os
import re
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vortex.dsl.diagnostics import Diagnostic, diagnose, nearest
from vortex.dsl.flow import vFlow
from vortex.dsl.ir import Location, Program, Shape
from vortex.dsl.registry import OPERATORS
from vortex.dsl.session import OutOfTime, Session, explain, one_line
from vortex.dsl.source import Source
from vortex.dsl.target import Unreadable, read, split_target
from vortex.dsl.tensor import Tensor
from vortex.dsl.trace import OutsideFlow, current
from vortex.dsl.verify import verify

MODULE = "vortex_algorithm"
"""Name under which an algorithm file is run."""


@dataclass(frozen=True)
class Traced:
    """What tracing a file gives: the program where there are no errors, and everything that was found."""

    program: Program | None
    findings: tuple[Diagnostic, ...]

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")


class _Refused(Exception):
    """A file from which no flow can be had."""

    def __init__(self, finding: Diagnostic) -> None:
        super().__init__(finding.message)
        self.finding = finding


def trace_file(
    target: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None, shape: Shape | None = None
) -> Traced:
    """Runs `file.py`, `file.py:Name` or a shipped algorithm and traces its flow, in this process."""
    path, name = split_target(os.fspath(target))
    try:
        source = _read(path)
    except _Refused as refused:
        return Traced(None, (refused.finding,))
    return trace_source(source, name, overrides, shape)


def trace_source(
    source: Source,
    name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    shape: Shape | None = None,
) -> Traced:
    """Runs the text of an algorithm file and traces its flow, or the one called `name`, in this process."""
    try:
        module = _execute(source)
        flow = _choose(module, source, name)
    except _Refused as refused:
        return Traced(None, (refused.finding,))
    return trace_flow(flow, overrides, shape, source)


def trace_flow(
    flow: type[vFlow],
    overrides: Mapping[str, Any] | None = None,
    shape: Shape | None = None,
    source: Source | None = None,
) -> Traced:
    """Traces a flow class. Locations refer to the file that defines it."""
    if source is None:
        module = sys.modules.get(flow.__module__)
        path = getattr(module, "__file__", None) or "<unknown>"
        try:
            source = _read(path)
        except _Refused:
            source = Source(path, "")
    session = Session(flow, source, shape or Shape(), known_model=shape is not None)
    with _undefined_names(flow, source):
        program = session.run(overrides or {})
    if program is not None:
        verify(program)
    ordered = sorted(
        session.findings, key=lambda finding: (finding.severity != "error", finding.line, finding.column)
    )
    return Traced(program, tuple(ordered))


def _read(path: str) -> Source:
    try:
        return Source(path, read(path))
    except Unreadable as error:
        raise _Refused(diagnose("unreadable", path, None, **error.facts)) from None


def _execute(source: Source) -> types.ModuleType:
    module = types.ModuleType(MODULE)
    module.__file__ = source.path
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(source.text, source.path, "exec", dont_inherit=True)
    except SyntaxError as error:
        line, column = error.lineno or 1, max(error.offset or 1, 1)
        end = error.end_offset if error.end_offset and error.end_lineno == line else column + 1
        place = Location(line, column, line, max(end, column + 1))
        raise _Refused(diagnose("syntax", source.path, place, error=one_line(error.msg))) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise _Refused(
            diagnose("syntax", source.path, None, error=one_line(str(error) or "too deep"))
        ) from None
    folder = os.path.dirname(os.path.abspath(source.path))
    sys.modules[MODULE] = module
    sys.path.insert(0, folder)
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit, OutOfTime) as error:
        raise _Refused(_raised(source, error)) from None
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    return module


def _raised(source: Source, error: BaseException) -> Diagnostic:
    """What went wrong while the file itself ran."""
    place = source.raised(error)
    if isinstance(error, OutOfTime):
        return diagnose("time-limit", source.path, place, limit=error.limit)
    if isinstance(error, ImportError) and error.name == "vortex":
        # `name_from` came with Python 3.12; before, the name stands in the message alone.
        name = getattr(error, "name_from", None) or (re.findall("'([^']*)'", str(error)) or ["?"])[0]
        return diagnose("unknown-operator", source.path, place, name=name, near=nearest(name, public_names()))
    if isinstance(error, NameError) and error.name:
        near = nearest(error.name, public_names())
        return diagnose("unknown-operator", source.path, place, name=error.name, near=near)
    if isinstance(error, OutsideFlow):
        slug, facts = explain(error, "")
        return diagnose(slug, source.path, place, **facts)
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return diagnose("file-raised", source.path, place, error=one_line(text))


def public_names() -> list[str]:
    """What `from vortex import *` brings."""
    return [name for name, op in OPERATORS.items() if op.public] + ["Parameter", "Positions", "vFlow"]


def flows(module: types.ModuleType) -> dict[str, type[vFlow]]:
    """The flows that a file itself defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, vFlow) and value.__module__ == module.__name__
    }


def _choose(module: types.ModuleType, source: Source, name: str | None) -> type[vFlow]:
    found = flows(module)
    if not found:
        raise _Refused(diagnose("no-flow", source.path, None))
    names = ", ".join(found)
    if name is not None:
        if name not in found:
            raise _Refused(
                diagnose("no-such-flow", source.path, None, name=name, near=nearest(name, found), names=names)
            )
        return found[name]
    able = _able(found)
    if len(able) > 1:
        first = next(iter(able))
        names = ", ".join(able)
        place = source.flow(first)
        raise _Refused(
            diagnose("several-flows", source.path, place, names=names, path=source.path, first=first)
        )
    return next(iter(able.values()))


def _able(found: dict[str, type[vFlow]]) -> dict[str, type[vFlow]]:
    """The flows that others of the file do not derive from, and of these the ones that select, if any does."""
    bases = {base for flow in found.values() for base in flow.__mro__[1:]}
    ends = {name: flow for name, flow in found.items() if flow not in bases}
    selecting = {name: flow for name, flow in ends.items() if hasattr(flow, "forward_indexer")}
    return selecting or ends


class UnknownName:
    """Stands for a name that the file does not define, so that tracing can go on after reporting it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _report(self) -> Tensor:
        recorder = current(self._name)
        recorder.report("unknown-operator", name=self._name, near=nearest(self._name, public_names()))
        return recorder.unknown()

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._report()

    def __getattr__(self, name: str) -> UnknownName:
        if name.startswith("__") or name == "as_tensor":
            raise AttributeError(name)
        return self

    def as_tensor(self, recorder: Any) -> Tensor:
        return self._report()

    def _used(self, *args: Any) -> Any:
        return self._report()

    def __bool__(self) -> bool:
        self._report()
        return True

    def __iter__(self) -> Iterator[Any]:
        self._report()
        return iter(())

    def __index__(self) -> int:
        self._report()
        return 1


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow",
    "rpow", "and", "rand", "or", "ror", "matmul", "rmatmul", "lt", "le", "gt", "ge", "neg", "abs", "invert", "getitem",
):  # fmt: skip
    setattr(UnknownName, f"__{_name}__", UnknownName._used)


class _undefined_names:
    """Defines, while a flow is traced, the global names that its code reads and nobody defined."""

    def __init__(self, flow: type[vFlow], source: Source) -> None:
        functions = [each for each in _functions(flow) if each.__code__.co_filename == source.path]
        self.namespaces = [
            (each.__globals__, name) for each in functions for name in _global_names(each.__code__)
        ]
        self.added: list[tuple[dict[str, Any], str]] = []

    def __enter__(self) -> None:
        for namespace, name in self.namespaces:
            if name not in namespace and not hasattr(builtins, name):
                namespace[name] = UnknownName(name)
                self.added.append((namespace, name))

    def __exit__(self, *details: object) -> None:
        for namespace, name in self.added:
            namespace.pop(name, None)


def _functions(flow: type[vFlow]) -> Iterator[types.FunctionType]:
    """Methods of a flow, and the functions at the top of the file it stands in."""
    for each in (*flow.__mro__, sys.modules.get(flow.__module__)):
        for value in list(vars(each).values()) if each not in (None, object) else ():
            function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if isinstance(function, types.FunctionType):
                yield function


def _global_names(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)
