"""How an author's call meets an operator's signature: positions, keywords, and what was probably meant."""

from __future__ import annotations

import inspect
from typing import Any

from vortex.dsl.diagnostics import nearest
from vortex.dsl.problem import Problem
from vortex.dsl.registry import Operator
from vortex.dsl.tensor import Tensor


def number(value: object) -> bool | int | float | None:
    """The Python number an operand is, numpy scalars included; None where it is none."""
    if isinstance(value, bool | int | float):
        return value
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return number(value.item())
    return None


class Bound:
    """Arguments of a call, in the order of the rule: (name, value, whether a tensor is expected)."""

    def __init__(self, positional: list[tuple[str, Any, bool]], keyword: dict[str, Any]) -> None:
        self.positional = positional
        self.keyword = keyword


def bind(op: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
    """Raises Problem for a call that does not fit."""
    signature = op.signature
    parameters = signature.parameters.values()
    slots = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    named = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
    open_ended = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    if len(args) > len(slots) and not open_ended and named:
        extra = args[len(slots)]
        if number(extra) is not None or isinstance(extra, str | tuple | list):
            names = [each.name for each in named if each.name in ("dim", "k", "max", "to")]
            if not isinstance(extra, int | float):
                names = names[:1]
            raise Problem("positional", op=op.name, names="` and `".join(names),
                          calls="` or `".join(f"{name}={_short(extra)}" for name in names))  # fmt: skip
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = nearest_argument(kwargs, [each.name for each in parameters]) or _several_operands(op, args)
        raise Problem(
            "arguments", op=op.name, error=f"{error}{hint}", signature=plain_signature(signature)
        ) from None
    positional: list[tuple[str, Any, bool]] = []
    keyword: dict[str, Any] = {}
    for each in signature.parameters.values():
        takes_tensor = str(each.annotation) == "TensorType"
        if each.kind is each.VAR_POSITIONAL:
            positional += [(each.name, value, takes_tensor) for value in bound.arguments.get(each.name, ())]
        elif each.kind is each.VAR_KEYWORD:
            keyword.update(bound.arguments.get(each.name, {}))
        elif each.kind is each.KEYWORD_ONLY:
            if each.name in bound.arguments:
                keyword[each.name] = bound.arguments[each.name]
        elif each.name in bound.arguments:
            positional.append((each.name, bound.arguments[each.name], takes_tensor))
    for name, value in keyword.items():
        plain = number(value)
        if plain is not None:
            keyword[name] = plain
        if isinstance(value, Tensor) or hasattr(value, "as_tensor"):
            raise Problem("arguments", op=op.name, error=f"{name} is a setting, not a tensor",
                          signature=plain_signature(signature))  # fmt: skip
    return Bound(positional, keyword)


def _several_operands(op: Operator, args: tuple[Any, ...]) -> str:
    """Reductions that were given two tensors were meant element by element."""
    instead = {"Max": "Maximum(a, b)", "Min": "Minimum(a, b)", "Sum": "a + b", "Mean": "(a + b) / 2"}
    several = len(args) > 1 and op.name in instead
    return f"; element by element it is {instead[op.name]}" if several else ""


def plain_signature(signature: inspect.Signature) -> str:
    """The signature as an author writes a call: names and defaults, no annotations."""
    plain = []
    for each in signature.parameters.values():
        kind = each.POSITIONAL_OR_KEYWORD if each.kind is each.POSITIONAL_ONLY else each.kind
        plain.append(each.replace(annotation=inspect.Parameter.empty, kind=kind))
    return str(inspect.Signature(plain))


def nearest_argument(given: dict[str, Any], known: list[str]) -> str:
    torch_names = {"axis": "dim", "axes": "dim", "dims": "dim", "dtype": "to", "top": "k", "n": "k"}
    torch_names |= {"kernel_size": "size", "kernel": "weights", "weight": "weights"}
    if "k" not in known:
        torch_names |= {"k": "max"}
    for name in given:
        if name in known:
            continue
        if name in ("keepdim", "keepdims"):
            return "; reductions remove their axis, and elementwise operators align by axis name without it"
        if torch_names.get(name) in known:
            return f"; write {torch_names[name]}="
        near = nearest(name, known)
        return f".{near.rstrip('?.')}?" if near else ""
    return ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
