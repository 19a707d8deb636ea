"""What reference implementations share: bringing operands into the axis order of a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vortex.dsl.axes import Axis, TensorType, computed, promote
from vortex.dsl.ir import Node

if TYPE_CHECKING:
    from torch import Tensor


def reorder(names: Sequence[str], target: Sequence[str]) -> Callable[[Tensor], Tensor] | None:
    """A view of a tensor over `names` that broadcasts against one over `target`; None where it already does."""
    order = [names.index(name) for name in target if name in names]
    missing = [position for position, name in enumerate(target) if name not in names]
    if order == list(range(len(names))):
        # Axes missing in front need no view: broadcasting adds them.
        if missing == list(range(len(missing))):
            return None
        permutation = None
    else:
        permutation = order

    def view(x: Tensor) -> Tensor:
        x = x if permutation is None else x.permute(permutation)
        for position in missing:
            x = x.unsqueeze(position)
        return x

    return view


def aligner(source: TensorType, axes: Sequence[Axis]) -> Callable[[Tensor], Tensor]:
    view = reorder(source.names, [axis.name for axis in axes])
    return view if view is not None else lambda x: x


def positions(x: TensorType, names: Sequence[str]) -> list[int]:
    """Where the named axes stand in the eager tensor, which has no leading 1."""
    return [x.names.index(name) for name in names]


def result_dtype(run: Any, dtype: str) -> Any:
    """The torch dtype in which the reference holds a value of this type."""
    import torch

    return {"bool": torch.bool, "int32": torch.int64}.get(computed(dtype), run.dtype)


def _integer_division(function: Callable[..., Any], a: Tensor, b: Tensor) -> Tensor:
    """Floor division or remainder of integers, 0 where the divisor is 0."""
    zero = b == 0
    return function(a, b.masked_fill(zero, 1)).masked_fill(zero, 0)


def aligned_reference(
    torch_name: str | Callable[..., Any],
) -> Callable[[Node, tuple[TensorType, ...]], Callable[..., Any]]:
    """The reference of an elementwise operator: align the operands, call the eager function, hold the dtype.

    torch_name: a function of torch, by name so that declaring it does not import torch, or any function
    """

    def build(node: Node, types: tuple[TensorType, ...]) -> Callable[..., Any]:
        import torch

        name = torch_name if isinstance(torch_name, str) else ""
        function = getattr(torch, name) if isinstance(torch_name, str) else torch_name
        views = [reorder(each.names, node.type.names) for each in types]
        # Mixed arithmetic happens in the common dtype, as on the device, not in torch's promotion.
        if node.type.dtype != "bool":
            common = computed(node.type.dtype)
        elif name.startswith(("bitwise", "logical")):
            common = "bool"
        else:
            common = promote(*types)
        divides = name in ("floor_divide", "remainder")
        convert = name != "where" and any(computed(each.dtype) != common for each in types)

        def evaluate(run: Any, *values: Any) -> Any:
            held = [value if view is None else view(value) for value, view in zip(values, views, strict=True)]
            if convert:
                wanted = result_dtype(run, common)
                held = [value.to(wanted) for value in held]
            if divides and not held[1].is_floating_point():
                result = _integer_division(function, *held)
            else:
                result = function(*held)
            dtype = result_dtype(run, node.type.dtype)
            return result if result.dtype == dtype else result.to(dtype)

        return evaluate

    return build
