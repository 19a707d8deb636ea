"""Checks algorithm files in a child process: tracing executes the file, so it gets limits and no trust.

The child answers over a pipe of its own with findings as JSON and the program in its text form. Nothing the
file prints, and no way in which it ends, is taken for an answer.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import IO, TYPE_CHECKING, Any

from vortex.dsl.catalogue import CATALOGUE
from vortex.dsl.diagnostics import Diagnostic, diagnose
from vortex.dsl.ir import Program, Shape
from vortex.dsl.target import split_target

if TYPE_CHECKING:
    from vortex.dsl.load import Traced

ANSWER_SECONDS = 2.0
"""Time beyond a file's own for the child to end it and to say what was found until then."""

START_SECONDS = 60.0
"""Time for the child to start, which depends on the machine and not on the file."""


@dataclass(frozen=True)
class Limits:
    """What one file may use: wall-clock seconds, memory of its own, bytes printed (and size of each file that
    it writes), bytes of its result, open files. The system enforces memory and open files where it can.
    """

    seconds: float = 10.0
    memory_mib: int = 1024
    output_kib: int = 256
    result_kib: int = 16384
    open_files: int = 128


@dataclass(frozen=True)
class Report:
    """What checking one file gave.

    target   `file.py`, `file.py:Name` or the name of a shipped algorithm, as asked
    text     the program in its text form, None where there are errors
    printed  what the file itself printed
    """

    target: str
    findings: tuple[Diagnostic, ...]
    text: str | None = None
    printed: str = ""

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")


def check(
    target: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    shape: Shape | None = None,
    limits: Limits | None = None,
) -> Traced:
    """Traces `file.py`, `file.py:Name` or a shipped algorithm in a child process.

    Values of overrides are what JSON can say.
    """
    from vortex.dsl.load import Traced

    report = next(examine([os.fspath(target)], overrides, shape, limits))
    if report.text is None:
        return Traced(None, report.findings)
    try:
        program = _program(report.text, report.target, shape or Shape())
    except ValueError as error:
        return Traced(None, (_failed(report.target, "crashed", error=str(error)),))
    return Traced(program, report.findings)


def examine(
    targets: Iterable[str],
    overrides: Mapping[str, Any] | None = None,
    shape: Shape | None = None,
    limits: Limits | None = None,
) -> Iterator[Report]:
    """Checks files one after the other, each on its own; the child starts once and again after a failure.

    The program's text is handed on unread: `check` parses and verifies it.
    """
    limits = limits or Limits()
    settings = {
        "overrides": dict(overrides or {}),
        "shape": asdict(shape or Shape()),
        "limits": asdict(limits),
    }
    child: _Child | None = None
    try:
        for target in targets:
            if child is None:
                child = _Child(limits)
            report = child.trace(target, settings)
            yield report
            if not child.usable:
                child.end()
                child = None
    finally:
        if child is not None:
            child.end()


class _Child:
    """The process that runs files, and two threads that read what comes out of it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.usable = True
        self._group: int | None = None
        self._printed = bytearray()
        self._excess = False
        self._news = threading.Condition()
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        single = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vortex.dsl.child"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **single}, start_new_session=os.name == "posix",
        )  # fmt: skip
        for read, pipe in ((self._read_answers, self._process.stdout), (self._count, self._process.stderr)):
            threading.Thread(target=read, args=(pipe,), daemon=True).start()
        self._started = False

    def trace(self, target: str, settings: Mapping[str, Any]) -> Report:
        """Never raises for what a file does; afterwards `usable` says whether the process still serves."""
        if not self._start():
            return self._lost(target, "it did not start")
        with self._news:
            self._printed.clear()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"target": target, **settings}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return self._lost(target, "it takes no request")
        until = time.monotonic() + self.limits.seconds + ANSWER_SECONDS
        answer = self._answer(until)
        if answer is not None and "started" in answer:
            self._group = answer["started"]
            answer = self._answer(until)
        if answer is None or not self._wait_for(str(answer["mark"]).encode(), until) or self._excess:
            return self._lost(target, "the process is gone", late=time.monotonic() >= until)
        self._group = None
        return self._judge(target, answer)

    def end(self) -> None:
        """Kills the process and everything it started."""
        self.usable = False
        for group in (self._group, self._process.pid):
            if group is not None and os.name == "posix":
                try:
                    os.killpg(group, signal.SIGKILL)
                except OSError:
                    continue
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                return

    def _start(self) -> bool:
        if not self._started:
            ready = self._answer(time.monotonic() + START_SECONDS)
            self._started = ready is not None
            self._forks = bool(ready and ready.get("forks"))
        return self._started

    def _answer(self, until: float) -> dict[str, Any] | None:
        try:
            return self._answers.get(timeout=max(until - time.monotonic(), 0.0))
        except queue.Empty:
            return None

    def _wait_for(self, mark: bytes, until: float) -> bool:
        """Whether the mark that ends the file's output came; it is cut off."""
        with self._news:
            came = self._news.wait_for(
                lambda: self._excess or self._printed.endswith(mark), max(until - time.monotonic(), 0.1)
            )
            if came and not self._excess:
                del self._printed[-len(mark) :]
            return came

    def _lost(self, target: str, error: str, late: bool = False) -> Report:
        late = late and self._process.poll() is None
        self.end()
        with self._news:
            printed = self._printed.decode("utf-8", "replace")
        if self._excess:
            finding = _failed(target, "output-limit", limit=self.limits.output_kib)
        elif late:
            finding = _failed(target, "time-limit", limit=f"{self.limits.seconds:g}")
        else:
            finding = _failed(target, "crashed", error=error)
        return Report(target, (finding,), None, printed)

    def _judge(self, target: str, answer: Mapping[str, Any]) -> Report:
        self.usable = self._forks
        with self._news:
            printed = self._printed.decode("utf-8", "replace")
        ended = answer["ended"]
        if hasattr(signal, "SIGXCPU") and ended == -signal.SIGXCPU:
            finding = _failed(target, "time-limit", limit=f"{self.limits.seconds:g}")
        elif ended or not answer["result"]:
            finding = _failed(target, "crashed", error=_ending(ended))
        else:
            try:
                findings, text = _read_result(answer["result"], target)
                return Report(target, findings, text, printed)
            except ValueError as error:
                finding = _failed(target, "crashed", error=str(error))
        return Report(target, (finding,), None, printed)

    def _read_answers(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def _count(self, pipe: IO[bytes]) -> None:
        """Keeps what is printed, up to the limit; beyond it the process is ended."""
        room = (self.limits.output_kib << 10) + 64
        while piece := os.read(pipe.fileno(), 65536):
            with self._news:
                if self._excess:
                    continue
                self._printed += piece
                self._excess = len(self._printed) > room
                self._news.notify_all()
                if self._excess:
                    self._answers.put(None)


def _failed(target: str, slug: str, **facts: Any) -> Diagnostic:
    return diagnose(slug, split_target(target)[0], None, **facts)


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _read_result(result: str, target: str) -> tuple[tuple[Diagnostic, ...], str | None]:
    """Findings and text out of what the child's fork wrote. Raises ValueError for anything malformed."""
    from vortex.dsl.session import one_line

    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        raise ValueError("its result is no JSON") from None
    if not isinstance(value, dict) or set(value) != {"findings", "program"}:
        crash = value.get("crash") if isinstance(value, dict) else None
        raise ValueError(one_line(crash) if isinstance(crash, str) else "its result has another form")
    text = value["program"]
    if not isinstance(value["findings"], list) or not isinstance(text, str | None):
        raise ValueError("its result has another form")
    findings = tuple(_finding(each, split_target(target)[0]) for each in value["findings"])
    if (text is None) != any(each.severity == "error" for each in findings):
        raise ValueError("its result has errors and a program, or neither")
    return findings, text


def _finding(value: Any, path: str) -> Diagnostic:
    types = {each.name: int if each.type == "int" else str for each in fields(Diagnostic)}
    known = {kind.code: kind.severity for kind in CATALOGUE.values()}
    if (
        not isinstance(value, dict)
        or set(value) != set(types)
        or any(type(value[name]) is not kind for name, kind in types.items())
        or known.get(value["code"]) != value["severity"]
        or value["file"] != path
    ):
        raise ValueError("a finding has another form")
    return Diagnostic(**value)


def _program(text: str, target: str, shape: Shape) -> Program:
    """The program that the child described. Raises ValueError for one that breaks the rules of the IR."""
    from vortex.dsl.text import parse
    from vortex.dsl.verify import VerificationError, verify

    try:
        program = verify(parse(text), "checking")
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, VerificationError) as error:
        raise ValueError(f"its program is malformed: {error}") from None
    if program.file != split_target(target)[0] or program.shape != shape:
        raise ValueError("its program is that of another request")
    return program
