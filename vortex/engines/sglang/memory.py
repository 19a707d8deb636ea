"""What a flow keeps beside K and V, and how SGLang's memory budget learns of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vortex.engines.sglang import compat
from vortex.engines.sglang.errors import StartError
from vortex.engines.sglang.rank import rank_of, shared_runner
from vortex.engines.sglang.settings import NAME, settings

if TYPE_CHECKING:
    from vortex.engines.sglang.rank import Runner
    from vortex.vtensor.batch import Heads

MOST_REQUESTS = 4096
"""Requests that SGLang runs at most when --max-running-requests is not given."""


@dataclass(frozen=True)
class Footprint:
    """Bytes over all layers.

    block  entries of one block and whether they are valid
    slot   state of one request
    """

    block: int
    slot: int

    def per_token(self, block_size: int) -> int:
        """Rounded up: the budget is counted in tokens."""
        return -(-self.block // block_size)


def footprint(runner: Runner, layers: int, heads: Heads, max_blocks: int) -> Footprint:
    """max_blocks: blocks of the longest request."""
    from vortex.codegen.compiled import CompiledFlow

    def size(blocks: int, slots: int) -> int:
        sizes: dict[str, Any] = {"layers": layers, "pool_blocks": blocks, "slots": slots,
                                 "max_blocks": max_blocks, "heads": heads, "device": "meta"}  # fmt: skip
        if isinstance(runner, CompiledFlow):
            from vortex.codegen.storage import allocate

            return allocate(runner.built, **sizes).bytes()
        return runner.allocate(**sizes).bytes()

    nothing = size(0, 0)
    return Footprint(size(1, 0) - nothing, size(0, 1) - nothing)


def serves(configurator: Any) -> bool:
    """Whether the decode steps of the model that memory is sized for are ours."""
    return compat.backends(configurator.server_args)[1] == NAME and not configurator.is_draft_worker


def _footprint(configurator: Any) -> tuple[Runner, Footprint]:
    config = configurator.model_config
    rank = rank_of(config)
    on_gpu = str(configurator.device).startswith("cuda")
    runner = shared_runner(settings(config.hf_config), rank, configurator.kv_cache_dtype, on_gpu)
    blocks = -(-config.context_len // runner.block_size)
    return runner, footprint(runner, rank.model.layers, rank.heads, blocks)


def add_entry_bytes(cell: int, pool: Any, configurator: Any, layers: int) -> int | None:
    """After `_compute_cell_size`: bytes of a token, its part of the entries included."""
    if not serves(configurator):
        return None
    runner, kept = _footprint(configurator)
    return cell + kept.per_token(runner.block_size)


def waiting(arguments: Any) -> int:
    """Requests that a decode server holds beside those that run: their prompts are being transferred."""
    if arguments.disaggregation_mode != "decode":
        return 0
    return arguments.disaggregation_decode_extra_slots or 0


def reserve_state(available: int, configurator: Any, *args: Any, **named: Any) -> int | None:
    """After `_profile_available_bytes`: what is left for the pool when the requests' state is set aside."""
    if not serves(configurator):
        return None
    runner, kept = _footprint(configurator)
    if not kept.slot:
        return None
    arguments = compat.resolved(configurator.server_args)
    requests = arguments.max_running_requests or MOST_REQUESTS
    slots = requests + waiting(arguments) + 1
    if slots * kept.slot >= available:
        fitting = max((available // 2 // kept.slot - 1) * requests // (slots - 1), 0)
        raise StartError(
            "state-memory", flow=runner.program.name, gib=f"{slots * kept.slot / 2**30:.2f}", slots=slots,
            kib=f"{kept.slot / 2**10:.0f}", available=f"{available / 2**30:.2f}", fitting=fitting,
        )  # fmt: skip
    return available - slots * kept.slot
