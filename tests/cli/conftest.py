"""Running commands in this process and as real processes."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from vortex.cli.main import app

FLOW = """from vortex import *


class Simple(vFlow):
    width = 2

    def forward_cache(c):
        c["mean"] = Mean(c["k"])

    def forward_indexer(self, q, c):
        return topK(Mean(GeMM(c["mean"], q.T), dim=2) * self.width)
"""


@pytest.fixture
def vortex():
    """Runs a command line in this process: exit_code, stdout, stderr, output."""
    return lambda *words: CliRunner().invoke(
        app, [str(word) for word in words], env={"COLUMNS": "120", "NO_COLOR": "1"}
    )


@pytest.fixture
def process():
    """Starts `python -m vortex` as a real process."""

    def start(*words, **options):
        command = [sys.executable, "-m", "vortex", *map(str, words)]
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(command, **{**pipes, "env": dict(os.environ), **options})

    return start


@pytest.fixture
def flow(tmp_path):
    path = tmp_path / "simple.py"
    path.write_text(FLOW, encoding="utf-8")
    return path


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(FLOW.replace("Mean(c", "Meen(c"), encoding="utf-8")
    return path
