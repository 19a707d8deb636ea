"""One small model for all of these tests, and what every process of a server needs to find."""

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

GPU = torch.cuda.is_available()


def paths() -> list[str]:
    """What servers, which are processes of their own, find: the package, the probe, what stands for CUDA."""
    found = [ROOT, HERE / "probe"]
    if not GPU:
        found.append(HERE / "stubs")
    if "vortex" not in {each.name for each in entry_points(group="sglang.srt.plugins")}:
        found.append(HERE / "uninstalled")  # a machine that has the source alone
    return [str(each) for each in found]


PATHS = paths()
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
if not GPU:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
for name in ("VORTEX_ALGORITHM", "VORTEX_SET", "SGLANG_PLUGINS"):
    os.environ.pop(name, None)


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    from tests.engines.sglang.models import write

    kind = {"head_dim": 128, "dtype": torch.bfloat16} if GPU else {}
    return write(tmp_path_factory.mktemp("qwen3"), **kind)
