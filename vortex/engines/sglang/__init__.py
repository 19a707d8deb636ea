"""SGLang as the host of a flow: `--attention-backend vortex`. Importing this imports no SGLang.

`vortex.engines.sglang.Engine` is SGLang's offline engine with an algorithm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vortex.engines.sglang.engine import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vortex.engines.sglang.engine import Engine

    return Engine
