"""The entry point `sglang.srt.plugins`: makes `vortex` an attention backend in every process of a server.

SGLang logs and swallows what a plugin or the application of a hook raises. So `register` remembers its problem,
and `create`, which runs in the process that serves, refuses to start unless everything landed.
"""

from __future__ import annotations

import logging
from typing import Any

from vortex.engines.sglang import compat, refusals
from vortex.engines.sglang.errors import StartError
from vortex.engines.sglang.settings import NAME

logger = logging.getLogger(__name__)

_problem: BaseException | None = None


def register() -> None:
    """Called by SGLang in every process."""
    global _problem
    compat.add_backend(NAME, create)
    try:
        compat.require_version(compat.installed_version())
        from vortex.engines.sglang.hooks import HOOKS

        compat.install([*HOOKS, *compat.on_arguments(refusals.decide)])
    except Exception as error:
        _problem = error
        raise


def require_loaded() -> None:
    """Loads SGLang's plugins in this process. Raises StartError where ours is not one of them."""
    from sglang.srt import server_args
    from sglang.srt.plugins import load_plugins

    load_plugins()
    _raise_problem()
    if NAME not in server_args.ATTENTION_BACKEND_CHOICES:
        raise StartError("not-loaded", version=compat.installed_version())


def create(runner: Any) -> Any:
    """The backend of one model, made in the process that serves. Raises StartError."""
    _raise_problem()
    version = compat.installed_version()
    if not compat.tested(version):
        logger.warning("vortex: SGLang %s lies between the versions that are tested", version)
    refusals.check_flags(compat.resolved(runner.server_args))
    refusals.check_model(runner.model_config)
    from vortex.engines.sglang import backend

    return backend.create(runner)


def _raise_problem() -> None:
    if isinstance(_problem, StartError):
        raise _problem
    if _problem is not None:
        version = compat.installed_version()
        raise StartError("hooks", version=version, absent=f"all ({_problem!r})") from _problem
