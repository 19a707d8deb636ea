"""What differs between the SGLang versions that are supported, and how SGLang is hooked into.

SGLang is imported inside functions: this module can be read, and its facts tested, where SGLang is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from vortex.engines.sglang.errors import StartError

OLDEST, NEWEST = (0, 5, 16), (0, 5, 23)
TESTED = (OLDEST, NEWEST)
"""Versions between the two pass when every hook lands; these two are tested."""

ARGUMENTS = "sglang.srt.server_args.ServerArgs._handle_attention_backend_compatibility"
"""What resolves the attention backend in 0.5.16, which has no hooks of its own for arguments."""

STEP = "handle_attention_backend_compatibility"
"""The same step in 0.5.23."""


@dataclass(frozen=True)
class Hook:
    """A function put around one of SGLang's.

    target    dotted path of a function or method; every one is required to exist
    function  before: (*args) -> None; after: (result, *args) -> new result, None keeps it;
              around: (original, *args) -> result
    """

    target: str
    function: Callable[..., Any]
    kind: Literal["before", "after", "around"] = "after"


def installed_version() -> str:
    from importlib.metadata import version

    return version("sglang")


def require_version(text: str) -> None:
    """Raises StartError for a version outside of what is supported."""
    if not OLDEST <= _numbers(text) <= NEWEST:
        supported = " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))
        raise StartError("version", version=text, supported=supported)


def tested(text: str) -> bool:
    return _numbers(text) in TESTED


def _numbers(text: str) -> tuple[int, ...]:
    """0.5.16.post1+cu130 -> (0, 5, 16)."""
    found = []
    for part in text.split("+")[0].split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        found.append(int(digits) if digits else -1)
    return tuple(found)


def install(hooks: Iterable[Hook]) -> None:
    """Registers hooks; SGLang applies them when all plugins are loaded, and logs what fails."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in hooks:
        HookRegistry.register(hook.target, hook.function, HookType(hook.kind))


def missing(hooks: Iterable[Hook]) -> list[str]:
    """Targets whose function is not ours, so that something of the backend would silently not happen."""
    import pkgutil

    found = []
    for hook in hooks:
        try:
            there = pkgutil.resolve_name(hook.target)
        except (ImportError, AttributeError):
            found.append(hook.target)
            continue
        if not _wraps(there, hook.function):
            found.append(hook.target)
    return sorted(set(found))


def _wraps(function: Any, hook: Callable[..., Any]) -> bool:
    """Whether a chain of wrappers calls the hook: it is a variable of one of their closures."""
    while function is not None:
        cells = getattr(function, "__closure__", None) or ()
        if any(_content(cell) is hook for cell in cells):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def add_backend(name: str, factory: Callable[[Any], Any]) -> None:
    """Makes a name known to --attention-backend, --decode-attention-backend and --prefill-attention-backend."""
    from sglang.srt import server_args
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    if name not in server_args.ATTENTION_BACKEND_CHOICES:
        server_args.add_attention_backend_choices([name])
    register_attention_backend(name)(factory)


def on_arguments(decide: Callable[[Any], dict[str, Any]]) -> list[Hook]:
    """Runs `decide(view)` after SGLang chose the attention backends: it raises, or returns fields to set.

    Returns the hooks that are still to be installed: 0.5.16 has no place of its own for this.
    """

    def apply(server_args: Any) -> None:
        from sglang.srt.arg_groups.overrides import run_post_process_pass

        def vortex(view: Any) -> dict[str, Any]:
            return decide(view)

        run_post_process_pass(server_args, vortex)

    try:
        from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    except ImportError:
        return [Hook(ARGUMENTS, lambda result, server_args: apply(server_args))]

    @register_resolution_hook(STEP)
    def resolve(server_args: Any, previous: Callable[[Any], None]) -> None:
        previous(server_args)
        apply(server_args)

    return []


def resolve_now(server_args: Any) -> None:
    """Resolves arguments where that does not happen in the constructor (0.5.23)."""
    resolve = getattr(server_args, "resolve_once", None)
    if resolve is not None:
        resolve()


def resolved(server_args: Any) -> Any:
    """A view on arguments in which every field has the value that is in effect."""
    from sglang.srt.arg_groups.overrides import resolved_view

    return resolved_view(server_args)


def given(view: Any, field: str) -> Any:
    """What the user gave for a field of a view, whatever became of it."""
    return getattr(object.__getattribute__(view, "_server_args"), field)


def backends(view: Any) -> tuple[str | None, str | None]:
    """Attention backends of prefill and decode."""
    from sglang.srt.arg_groups.overrides import attention_backends_of

    return attention_backends_of(view)


def model_config(view: Any) -> Any:
    """SGLang's description of the model that arguments name."""
    from sglang.srt.arg_groups import overrides

    if hasattr(overrides, "model_config_of"):
        return overrides.model_config_of(view)
    return view.get_model_config()


def shared_read_ends() -> Any:
    """The kinds of ends of a backend's reads of shared memory, None in 0.5.16, which does not ask."""
    try:
        from sglang.srt.layers.attention.base_attn_backend import SharedReadEnds
    except ImportError:
        return None
    return SharedReadEnds
