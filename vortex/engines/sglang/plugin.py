"""The entry point `sglang.srt.plugins`: makes `vortex` an attention backend in every process of a server.

SGLang logs and swallows what a plugin or the application of a hook raises. So `register` remembers its problem,
and `create`, which runs in the process that serves, refuses to start unless everything landed.
"""

from __future__ import annotations

import logging
from typing import Any

from vortex.engines.sglang import compat, refusals
from vortex.engines.sglang.compat import Hook
from vortex.engines.sglang.errors import StartError
from vortex.engines.sglang.hooks import HOOKS
from vortex.engines.sglang.settings import NAME

logger = logging.getLogger(__name__)

_problem: BaseException | None = None
_hooks: list[Hook] = []


def register() -> None:
    """Called by SGLang in every process."""
    global _problem
    compat.add_backend(NAME, create)
    try:
        compat.require_version(compat.installed_version())
        _hooks.extend([*HOOKS, *compat.on_arguments(refusals.decide)])
        compat.install(_hooks)
    except Exception as error:
        # Who serves with another backend is not to be disturbed.
        _problem = error
        logger.info("vortex cannot be an attention backend here: %s", error)


def require_loaded() -> None:
    """Loads SGLang's plugins in this process. Raises StartError where ours is not one of them."""
    from sglang.srt import server_args
    from sglang.srt.plugins import load_plugins

    load_plugins()
    if _problem is not None:
        raise _problem
    if NAME not in server_args.ATTENTION_BACKEND_CHOICES:
        raise StartError("not-loaded", version=compat.installed_version())


def create(runner: Any) -> Any:
    """The backend of one model. Raises StartError."""
    version = compat.installed_version()
    if isinstance(_problem, StartError):
        raise _problem
    absent = [repr(_problem)] if _problem else compat.missing(_hooks)
    if absent:
        raise StartError("hooks", version=version, missing=", ".join(absent)) from _problem
    if not compat.tested(version):
        logger.warning("vortex: SGLang %s is between the tested versions, every hook landed", version)
    refusals.check_flags(compat.resolved(runner.server_args))
    refusals.check_model(runner.model_config)
    config, window = runner.model_config, getattr(runner, "sliding_window_size", None)
    refusals.check_layers(runner.model, config.num_hidden_layers, config, window)
    from vortex.engines.sglang.backend import VortexBackend

    return VortexBackend(runner)
