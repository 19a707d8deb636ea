"""The embedded engine: any Llama-, Qwen- or Mistral-like model of Transformers over a paged KV pool."""

from vortex.engines.transformers.allocator import PoolFull
from vortex.engines.transformers.compare import Comparison, Replay
from vortex.engines.transformers.counters import Counters
from vortex.engines.transformers.demo import ModelError
from vortex.engines.transformers.engine import Engine
from vortex.engines.transformers.flow import FlowError
from vortex.engines.transformers.generate import Generation, Output
from vortex.engines.transformers.model import LoadedModel, adopt, load
from vortex.engines.transformers.recall import Recall
from vortex.engines.transformers.sampling import Sampling

__all__ = [
    "Comparison", "Counters", "Engine", "FlowError", "Generation", "LoadedModel", "ModelError", "Output", "PoolFull",
    "Recall", "Replay", "Sampling", "adopt", "load",
]  # fmt: skip
