"""SGLang's offline engine, decoding with a flow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from sglang.srt.entrypoints.engine import Engine as SGLangEngine

from vortex.engines.sglang.plugin import require_loaded
from vortex.engines.sglang.settings import NAME, override


class Engine(SGLangEngine):
    """`sglang.Engine` whose decode steps run a flow.

    algorithm   `file.py`, `file.py:Name`, or the name of an algorithm that comes along, `quest`
    values      its hyper-parameters, e.g. {"budget": 128}
    sglang_args what `sglang.Engine` takes; attention_backend is ours unless one is given

    Raises StartError for what cannot be served.
    """

    def __init__(
        self,
        *,
        algorithm: str | os.PathLike[str],
        values: Mapping[str, Any] | None = None,
        **sglang_args: Any,
    ) -> None:
        require_loaded()
        given = json.loads(sglang_args.pop("json_model_override_args", "{}"))
        given["vortex"] = override(algorithm, values or {})
        if sglang_args.get("decode_attention_backend") is None:
            sglang_args.setdefault("attention_backend", NAME)
        super().__init__(json_model_override_args=json.dumps(given), **sglang_args)
