"""Whatever is done to an algorithm file, tracing it ends in diagnostics or success: never a traceback, never a hang."""

import json
import re
import signal
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch  # noqa: F401  (files import it: its first import takes longer than a file may)

from tests.dsl.mutate import mutate
from vortex.dsl.catalogue import CATALOGUE
from vortex.dsl.diagnostics import render
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_source
from vortex.dsl.source import Source
from vortex.dsl.text import parse, print_program

ALGORITHMS = Path(__file__).parents[2] / "algorithms"

# Without the docstring, where most mutations would change nothing.
SOURCES = [re.sub(r'^""".*?"""\n+', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
           for path in sorted(ALGORITHMS.glob("*.py"))]  # fmt: skip
CODES = {kind.code for kind in CATALOGUE.values()}
SECONDS = 5


class TookTooLong(BaseException):
    """The author's own endless loop: in production the child process ends it."""


@contextmanager
def limited(seconds):
    def end(number, frame):
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(text):
    """What tracing a text gives; the findings are checked for what a report needs."""
    with limited(SECONDS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = trace_source(Source("mutated.py", text), shape=Shape(8, 2, 128, 32))
    if traced.program is not None:
        assert not traced.errors
        assert parse(print_program(traced.program)) == traced.program
        return "success"
    assert traced.errors
    lines = len(re.split(r"\r\n|\r|\n", text))
    for finding in traced.findings:
        assert finding.code in CODES
        assert 0 <= finding.line <= lines and finding.column >= 0
        assert finding.message and finding.remedy and "\n" not in finding.message + finding.remedy
        json.dumps(finding.json(), ensure_ascii=False).encode("utf-8")
        render(finding, text).encode("utf-8")
    return traced.errors[0].code


def run(seeds):
    seen, slow = {}, []
    for seed in seeds:
        text = mutate(seed, SOURCES)
        try:
            found = outcome(text)
        except TookTooLong:
            slow.append(seed)
            continue
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{text}") from error
        seen.setdefault(found, []).append(seed)
    return seen, slow


@pytest.fixture(autouse=True)
def quiet(capsys):
    yield


def test_five_hundred_mutations_end_in_diagnostics_or_success():
    seen, slow = run(range(500))
    assert not slow, slow
    assert "success" in seen and len(seen) > 40


@pytest.mark.slow
def test_ten_thousand_mutations_end_in_diagnostics_or_success():
    seen, slow = run(range(1000, 11_000))
    # An endless loop of the file itself is not ours; it must be rare, or the mutations teach nothing.
    assert len(slow) <= 20, slow
    assert "success" in seen and len(seen) > 80
