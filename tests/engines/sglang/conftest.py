"""One small model for all of these tests, and what every process of a server needs to find."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

# Servers are processes of their own: they find the package, what stands for CUDA, and the probe through these.
PATHS = [str(ROOT), str(HERE / "stubs")]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
os.environ |= {
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
for name in ("VORTEX_ALGORITHM", "VORTEX_SET", "SGLANG_PLUGINS"):
    os.environ.pop(name, None)


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    from tests.engines.sglang.models import write

    return write(tmp_path_factory.mktemp("qwen3"))
