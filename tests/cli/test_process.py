"""Commands as real processes: exit codes, closed pipes, Ctrl-C, streams."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes of POSIX")


@pytest.mark.parametrize(("file", "code"), [("flow", 0), ("broken", 1)])
def test_exit_codes_reach_the_shell(process, request, file, code):
    started = process("check", request.getfixturevalue(file))
    out, err = started.communicate()
    assert started.returncode == code
    assert out and not err


def test_bad_usage_speaks_on_stderr(process):
    started = process("check")
    out, err = started.communicate()
    assert (started.returncode, out) == (2, b"")
    assert b"Usage" in err


@posix
def test_a_closed_pipe_ends_quietly(process):
    started = process("ops")
    started.stdout.close()
    assert started.stderr.read() == b""
    assert started.wait() == 141


@posix
def test_ctrl_c_ends_quietly_and_takes_the_child_along(process, flow, tmp_path):
    pid = tmp_path / "pid"
    flow.write_text(
        f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
        + flow.read_text()
    )
    # A shell starts what it runs in the background with Ctrl-C ignored, and that is inherited.
    started = process("check", flow, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    for _ in range(200):
        if pid.exists() and pid.read_text():
            break
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=20)
    assert (started.returncode, out, err) == (130, b"", b"")
    assert not running(int(pid.read_text()))


def running(pid):
    """Whether a process still runs; one that only waits to be collected does not."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return False
        except FileNotFoundError:
            return False
        time.sleep(0.05)
    return True


@posix
def test_checking_takes_less_than_a_second_of_work(process):
    """Both processes together; time on the clock would depend on what else the machine does."""
    started = process("check", ROOT / "algorithms" / "quest.py")
    _, status, usage = os.wait4(started.pid, 0)
    assert (status, usage.ru_utime + usage.ru_stime < 1.0) == (0, True), usage


def test_no_colour_without_a_terminal(process, broken):
    out, _ = process("check", broken).communicate()
    assert b"\x1b" not in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("words", [("check", "--json"), ("compile", "--emit", "ir")])
def test_a_full_disk_behind_stdout_is_one_line(process, flow, words):
    with open("/dev/full", "wb") as full:
        started = process(*words, flow, stdout=full)
        _, err = started.communicate()
    assert (started.returncode, err) == (2, b"error: the output cannot be written: No space left on device\n")


def test_a_locale_of_ascii_still_gets_every_finding(process, broken):
    broken.write_text(broken.read_text("utf-8").replace('"k"])', '"k"])  # …', 1), "utf-8")
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    started = process("check", broken, env=ascii_only)
    out, err = started.communicate()
    assert (started.returncode, err) == (1, b"")
    assert b"\\u2026" in out
