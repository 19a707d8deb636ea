"""Processes of cases: started together up to the GPU, then run one after the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.serving.cases import Case
from benchmarks.serving.gate import FOLDER, GO, WAITING

ROOT = Path(__file__).resolve().parents[2]
ENTRY_POINTS = """[sglang.srt.plugins]
vortex = vortex.engines.sglang.plugin:register
random_weights = benchmarks.serving.weights:register
gate = benchmarks.serving.gate:register
"""


class Server:
    """One case in processes of its own, a session of the system.

    folder  of its own, for what it reads and writes
    log     file of its output
    device  "cuda" or "cpu"; changes: keys of the model's configuration
    """

    def __init__(self, case: Case, folder: Path, log: Path, device: str, changes: Mapping[str, Any]) -> None:
        self.case, self.folder, self.log = case, folder, log
        folder.mkdir(parents=True)
        spec = {
            "case": case.json(),
            "device": device,
            "models": str(folder / "models"),
            "changes": dict(changes),
        }
        (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        path = [str(ROOT), str(plugin_folder(folder / "plugins")), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, **case.environment, FOLDER: str(folder),
                       "PYTHONPATH": os.pathsep.join(filter(None, path))}  # fmt: skip
        command = [sys.executable, "-u", "-m", "benchmarks.serving.client",
                   str(folder / "spec.json"), str(folder / "results.json")]  # fmt: skip
        with log.open("w", encoding="utf-8") as file:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file,
                                            stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip

    @property
    def waits(self) -> bool:
        return (self.folder / WAITING).exists()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def run(self, seconds: float) -> dict[str, Any] | None:
        """Lets it go on, until its end or for so long; its results, as far as they came."""
        released = time.time()
        (self.folder / GO).touch()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(seconds, 0))
        self.end()
        results = self.folder / "results.json"
        if not results.exists():
            return None
        found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
        return {**found, "start_s": found["ready"] - released}

    def end(self) -> None:
        """Ends its processes, and waits until none is left, so that their memory of the GPU is free again."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        give_up = time.monotonic() + 10
        while cpu_seconds([self.process.pid]) and time.monotonic() < give_up:
            time.sleep(0.05)


def gathered(servers: Sequence[Server], seconds: float) -> None:
    """Returns when each waits at the gate or has ended, after so many seconds at the latest."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up and not all(each.waits or each.ended for each in servers):
        time.sleep(0.1)


def cpu_seconds(sessions: Sequence[int]) -> dict[int, float]:
    """CPU seconds of each running process of these sessions so far, by process."""
    found, tick = {}, os.sysconf("SC_CLK_TCK")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) in sessions and fields[0] != "Z":
                found[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / tick
    return found


def plugin_folder(folder: Path) -> Path:
    """What makes SGLang find plugins that are not installed: metadata of a package on the path."""
    package = folder / "vortex_benchmark-0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vortex-benchmark\nVersion: 0\n")
    installed = "vortex" in _installed()
    lines = [line for line in ENTRY_POINTS.splitlines() if not (installed and line.startswith("vortex ="))]
    (package / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def _installed() -> set[str]:
    from importlib.metadata import entry_points

    return {each.name for each in entry_points(group="sglang.srt.plugins")}
