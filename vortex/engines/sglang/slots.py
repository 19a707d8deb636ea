"""State of requests, by their row in SGLang's table: it starts anew when a row goes to another request."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vortex.engines.sglang.rank import Runner


class Slots:
    """Follows a table of requests.

    A row that is handed out again has another generation. Its state is reset by the stream that runs the next
    forward pass (`apply`), since older steps may still write the state of the row's last request.
    """

    def __init__(self, runner: Runner, storage: Any, device: torch.device) -> None:
        self.runner, self.storage, self.device = runner, storage, device
        self.seen: dict[int, int] = {}
        self.pending: set[int] = set()

    @property
    def needed(self) -> bool:
        """Whether the flow keeps anything by request."""
        program = self.runner.program
        return bool(program.states) or (program.policy.reuse_steps, program.policy.reuse_layers) != (1, 1)

    def follow(self, table: Any) -> None:
        """Wraps the table's methods. Raises AttributeError where it lacks one, or generations."""
        hand_out, clear, generations = table.alloc, table.clear, table.req_generation

        @functools.wraps(hand_out)
        def watched(*args: Any, **named: Any) -> Any:
            rows = hand_out(*args, **named)
            for row in rows or ():
                generation = int(generations[row])
                if self.seen.get(row) != generation:
                    self.seen[row] = generation
                    self.pending.add(row)
            return rows

        @functools.wraps(clear)
        def forgotten(*args: Any, **named: Any) -> Any:
            # Generations may count from zero again.
            self.seen.clear()
            return clear(*args, **named)

        table.alloc, table.clear = watched, forgotten

    def apply(self) -> None:
        """Before a forward pass, on its stream."""
        if not self.pending:
            return
        rows = torch.tensor(sorted(self.pending), dtype=torch.int64)
        self.pending.clear()
        if self.device.type == "cuda":
            rows = rows.pin_memory().to(self.device, non_blocking=True)
        self.runner.reset_slots(self.storage, rows)
