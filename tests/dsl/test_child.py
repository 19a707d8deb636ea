"""Checking in a child process: what a file may not do, and that its answer cannot be forged."""

import json
import sys
import textwrap
import time
from pathlib import Path

import pytest

from vortex.dsl.catalogue import CATALOGUE
from vortex.dsl.check import Limits, Report, check, examine
from vortex.dsl.ir import Shape
from vortex.dsl.load import trace_file

FLOW = """
class Simple(vFlow):
    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(q, c):
        return topK(Mean(GeMM(c["mean"], q.T), dim=2))
"""


@pytest.fixture
def write(tmp_path):
    def put(before="", name="flow.py", flow=FLOW):
        path = tmp_path / name
        path.write_text(f"from vortex import *\n{textwrap.dedent(before)}{flow}", encoding="utf-8")
        return str(path)

    return put


def slugs(report):
    names = {kind.code: slug for slug, kind in CATALOGUE.items()}
    return [names[finding.code] for finding in report.findings]


def only(path, **limits):
    return next(examine([path], limits=Limits(**limits)))


def test_the_child_gives_what_tracing_here_gives(write):
    path = write()
    shape = Shape(9, 3, 64, 30)
    assert check(path, {"budget": "64"}, shape) == trace_file(path, {"budget": "64"}, shape)


def test_findings_arrive_with_their_places(write):
    path = write(flow=FLOW.replace("topK", "topK2"))
    assert check(path) == trace_file(path)
    assert check(path).errors[0].line == 8


def test_an_endless_loop_is_a_finding_and_leaves_no_process(write, tmp_path):
    started = time.monotonic()
    report = only(write(f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
                        "while True: pass\n"), seconds=1.0)  # fmt: skip
    assert slugs(report) == ["time-limit"]
    assert time.monotonic() - started < 10
    assert not alive(int((tmp_path / "pid").read_text()))


ENDLESS = """
class Endless(vFlow):
    def forward_cache(c):
        c["mean"] = c["k"].mean(1)
{cache}

    def forward_indexer(q, c):
        s = Meen(q)
{indexer}
        return topK(Sum(c["mean"]))
"""


@pytest.mark.parametrize(
    ("cache", "indexer", "found"),
    [
        ("", "while True: s = 1", [("torch-idiom", 5), ("unknown-operator", 9), ("time-limit", 10)]),
        ("for n in iter(int, 1): n = 2", "", [("torch-idiom", 5), ("time-limit", 6)]),
        (
            "",
            "import time; time.sleep(60)",
            [("torch-idiom", 5), ("unknown-operator", 9), ("time-limit", 10)],
        ),
    ],
)
def test_what_was_found_before_an_endless_loop_is_told_with_its_line(write, cache, indexer, found):
    flow = ENDLESS.format(cache=" " * 8 + cache, indexer=" " * 8 + indexer)
    reports = list(examine([write(flow=flow), write(name="fine.py")], limits=Limits(seconds=1.0)))
    assert list(zip(slugs(reports[0]), [each.line for each in reports[0].findings], strict=True)) == found
    assert slugs(reports[1]) == []


def test_a_loop_at_the_top_of_a_file_is_told_at_its_line(write):
    (finding,) = only(write("while True: pass\n"), seconds=1.0).findings
    assert finding.line == 2


@pytest.mark.parametrize(
    "stubborn",
    [
        "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass\n",
        "sum(iter(int, 1))\n",  # never comes back to Python
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass\n",
    ],
)
def test_a_file_that_does_not_let_itself_be_interrupted_is_ended_from_outside(write, stubborn):
    started = time.monotonic()
    report = only(write(stubborn), seconds=1.0)
    assert slugs(report) == ["time-limit"]
    assert time.monotonic() - started < 10


def test_a_sleeping_subprocess_is_killed_with_the_file(write, tmp_path):
    report = only(write(f"""
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
    """))  # fmt: skip
    assert slugs(report) == []
    assert not alive(int((tmp_path / "pid").read_text()))


def alive(pid):
    """Whether a process still runs; one that only waits to be collected does not."""
    for _ in range(50):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return False
        except FileNotFoundError:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce a limit of memory")
def test_memory_beyond_the_limit_is_told_at_its_line(write):
    report = only(write("data = bytearray(400 << 20)\n"), memory_mib=256)
    assert slugs(report) == ["memory-limit"]
    assert report.findings[0].line == 2


def test_endless_printing_is_a_finding(write):
    report = only(write("while True: print('x' * 1000)\n"), output_kib=64)
    assert slugs(report) == ["output-limit"]


def test_printing_is_kept_apart_from_the_result(write):
    forged = json.dumps({"findings": [], "program": None})
    report = only(write(f"print({forged!r}, flush=True)\nimport os\nos.write(1, b'raw')\n"))
    assert slugs(report) == []
    assert report.printed == forged + "\nraw"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os\nos._exit(3)\n", "exit status 3"),
        ("import os\nos._exit(0)\n", "exit status 0"),
        ("import os\nos.abort()\n", "SIGABRT"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
        (
            "import os\nfor n in range(3, 40):\n    try: os.write(n, b'[]')\n    except OSError: pass\n",
            "JSON",
        ),
        (
            'import json\njson.dumps = lambda value: \'{"findings": [1], "program": null}\'\n',
            "another form",
        ),
        ("import sys\nsys.stdout = None\nimport os\nos._exit(1)\n", "exit status 1"),
    ],
)
def test_an_end_without_a_result_is_a_crash(write, code, words):
    report = only(write(code))
    assert slugs(report) == ["crashed"]
    assert words in report.findings[0].message


def test_a_program_that_breaks_the_rules_is_not_believed(write):
    code = """
        import sys
        child = sys.modules["__main__"]
        real = child.print_program
        child.print_program = lambda program: real(program).replace("Mean(%0)", "Exp(%0)")
    """
    assert slugs(check(write(code))) == ["crashed"]


def test_a_file_cannot_reach_the_next_one(write):
    spoil = write("import vortex.dsl.load\nvortex.dsl.load.trace_file = None\n", "spoil.py")
    crash, fine = write("import os\nos._exit(1)\n", "crash.py"), write(name="fine.py")
    reports = list(examine([spoil, crash, "missing.py", fine]))
    assert [slugs(report) for report in reports] == [[], ["crashed"], ["unreadable"], []]
    assert reports[-1].text is not None


def test_after_a_timeout_the_next_file_is_checked(write):
    reports = list(examine([write("while True: pass\n", "loop.py"), write()], limits=Limits(seconds=1.0)))
    assert [slugs(report) for report in reports] == [["time-limit"], []]


def test_reading_from_stdin_ends_at_once(write):
    assert slugs(only(write("input()\n"))) == ["file-raised"]


def test_modules_beside_the_caller_are_not_taken_for_the_standard_library(write, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise RuntimeError", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    path = write()
    assert isinstance(only(path), Report)


def test_nothing_is_written_beside_the_file(write, tmp_path):
    (tmp_path / "helper.py").write_text("WIDTH = 3\n", encoding="utf-8")
    assert slugs(only(write("import helper\n"))) == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["flow.py", "helper.py"]
