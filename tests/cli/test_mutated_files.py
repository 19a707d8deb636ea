"""Mutated algorithm files through the command, as files of strangers arrive: never a traceback."""

import json
import subprocess
import sys

from tests.dsl.mutate import mutate
from tests.dsl.test_mutations import SOURCES

FILES = 50


def test_fifty_mutated_files_end_in_diagnostics_or_success(tmp_path):
    paths = []
    for seed in range(FILES):
        path = tmp_path / f"mutated_{seed}.py"
        path.write_bytes(mutate(50_000 + seed, SOURCES).encode("utf-8", "surrogatepass"))
        paths.append(str(path))
    command = [sys.executable, "-m", "vortex", "check", *paths, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    report = json.loads(done.stdout)
    assert [each["target"] for each in report["files"]] == paths
    failed = sum(not each["ok"] for each in report["files"])
    assert 0 < failed < FILES, "mutations that all fail, or all pass, show nothing"
