"""The process that runs authors' files for `check.py`: one request a line on stdin, one answer a line on stdout.

Where the system can fork, each file runs in a fork of its own: it starts at once, and nothing that one file
does reaches the next. Elsewhere the process ends after one file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, BinaryIO

from vortex.dsl.catalogue import CATALOGUE
from vortex.dsl.check import ANSWER_SECONDS
from vortex.dsl.diagnostics import Diagnostic, diagnose
from vortex.dsl.ir import Policy, Shape
from vortex.dsl.load import Traced, trace_file
from vortex.dsl.policy import Budget
from vortex.dsl.session import OutOfTime
from vortex.dsl.target import split_target
from vortex.dsl.text import print_program

LIBRARY_ADDRESSES = 16 << 30
"""Bytes of address space beyond the limit of memory: libraries reserve far more than they use."""


def main() -> None:
    # The author's code finds /dev/null on 0 and the parent's counter on 1 and 2: what it prints is no answer.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.dont_write_bytecode = True
    forks = hasattr(os, "fork")
    Budget.parse(Policy().budget)  # compiles the grammar once, before the forks
    _send(answers, {"forks": forks})
    for line in requests:
        request = json.loads(line)
        result, ended = _forked(request, requests, answers) if forks else (_result(request), 0)
        # The mark follows everything that the file printed; the file could not know it.
        mark = os.urandom(16).hex()
        _send(answers, {"result": result, "ended": ended, "mark": mark})
        os.write(2, mark.encode())
        if not forks:
            break


def _send(answers: BinaryIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _forked(request: dict[str, Any], requests: BinaryIO, answers: BinaryIO) -> tuple[str, int]:
    """The result as the fork wrote it, and how it ended: an exit status, or minus a signal."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            for file in (requests, answers):
                os.close(file.fileno())
            os.close(read)
            _restrict(request["limits"])
            _write_all(write, _result(request).encode())
        finally:
            try:
                _flush()
            finally:
                os._exit(0)
    os.close(write)
    _send(answers, {"started": pid})
    limit = request["limits"]["result_kib"] << 10
    result = b""
    while len(result) <= limit and (piece := os.read(read, 65536)):
        result += piece
    os.close(read)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)  # whatever the file started and left behind
    return result[:limit].decode("utf-8", "replace"), ended


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _flush() -> None:
    # The file may have closed or replaced them.
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()


def _restrict(limits: Mapping[str, Any]) -> None:
    """Sets the system's limits for this process, those that it has."""
    try:
        import resource
    except ImportError:
        return
    memory = limits["memory_mib"] << 20
    wanted = {
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": int(limits["seconds"] + ANSWER_SECONDS) + 1,
        "RLIMIT_DATA": memory,
        "RLIMIT_AS": memory + LIBRARY_ADDRESSES,
        "RLIMIT_FSIZE": limits["output_kib"] << 10,
        "RLIMIT_NOFILE": limits["open_files"],
    }
    for name, value in wanted.items():
        which = getattr(resource, name, None)
        if which is None:
            continue
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(which, (value, value))
        except (OSError, ValueError):
            continue  # a system that knows the name and not the limit


@contextmanager
def _ending_after(seconds: float) -> Iterator[None]:
    """Raises OutOfTime in the author's code after so long, so that what was found before is still told.

    Code that never comes back to Python, or that catches everything, is ended from outside a little later.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return

    def over(*_: object) -> None:
        raise OutOfTime(seconds)

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _result(request: Mapping[str, Any]) -> str:
    """JSON: findings and the program's text, or what ended the tracer."""
    try:
        with _ending_after(request["limits"]["seconds"]):
            traced = trace_file(request["target"], request["overrides"], Shape(**request["shape"]))
        findings = [_memory(each, request["limits"]["memory_mib"]).json() for each in traced.findings]
        return json.dumps({"findings": findings, "program": _text(traced)})
    except OutOfTime as error:  # between the author's lines
        path = split_target(request["target"])[0]
        return json.dumps(
            {"findings": [diagnose("time-limit", path, None, limit=error.limit).json()], "program": None}
        )
    except BaseException as error:  # KeyboardInterrupt and the like may come out of the author's file
        return json.dumps({"crash": f"{type(error).__name__}: {error}"})


def _text(traced: Traced) -> str | None:
    return None if traced.program is None else print_program(traced.program)


def _memory(finding: Diagnostic, limit: int) -> Diagnostic:
    """What an author's line raised for want of memory is told as that."""
    raised = finding.code in (CATALOGUE["file-raised"].code, CATALOGUE["raised"].code)
    if not raised or not any(word in finding.message for word in ("MemoryError", "allocate memory")):
        return finding
    kind = CATALOGUE["memory-limit"]
    return replace(
        finding, code=kind.code, message=kind.message.format(limit=limit), remedy=kind.remedy.format()
    )


if __name__ == "__main__":
    main()
