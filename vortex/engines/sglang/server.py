"""SGLang's HTTP server in this process, as `python -m sglang.launch_server` starts it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sglang.srt.server_args import prepare_server_args
from sglang.srt.utils import kill_process_tree

from vortex.engines.sglang import compat
from vortex.engines.sglang.plugin import require_loaded


def serve(arguments: Sequence[str]) -> None:
    """Serves until it is ended. Raises StartError for arguments that do not go with the backend."""
    require_loaded()
    from sglang.launch_server import run_server

    server_args = prepare_server_args(list(arguments))
    compat.resolve_now(server_args)
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
