"""What Python, numpy and torch would do with a tensor of a flow, told in the words of the language."""

from __future__ import annotations

import ast
import functools
from typing import Any

from vortex.dsl.ir import Location
from vortex.dsl.registry import OPERATORS
from vortex.dsl.tensor import Tensor
from vortex.dsl.trace import StopMethod, current, number

BUILTINS = {
    "max": "Use Max(x, dim=…) over an axis, or Maximum(a, b) element by element.",
    "min": "Use Min(x, dim=…) over an axis, or Minimum(a, b) element by element.",
    "sum": "Use Sum(x, dim=…) over an axis; several tensors are added with +.",
    "len": "Sizes are in `x.shape`; the number of blocks differs by request and has no size while tracing.",
    "sorted": "Use topK: it returns the best of an axis as an index set.",
    "any": "Use Max over the axis: a boolean counts as 0 and 1.",
    "all": "Use Min over the axis: a boolean counts as 0 and 1.",
    "list": "Index an axis of known size: `[x[:, j] for j in range(n)]`.",
    "tuple": "Index an axis of known size: `[x[:, j] for j in range(n)]`.",
    "enumerate": "Index an axis of known size: `[x[:, j] for j in range(n)]`.",
    "zip": "Index an axis of known size: `[x[:, j] for j in range(n)]`.",
    "range": "A range is unrolled while tracing: its bounds are numbers such as `x.shape[1]`.",
    "bool": "Compare with an operator, e.g. `x > 0`, and choose with Where(condition, a, b).",
    "round": "Use Cast(x, \"int32\"), which rounds towards zero.",
    "float": "Keep it a tensor: operators and numbers mix freely.",
    "int": "Keep it a tensor, or use Cast(x, \"int32\").",
    "complex": "Keep it a tensor: operators and numbers mix freely.",
}  # fmt: skip

IDIOMS = {
    "mean": "Mean", "sum": "Sum", "max": "Max", "min": "Min", "amax": "Max", "amin": "Min", "norm": "L2Norm",
    "softmax": "Softmax", "topk": "topK", "argmax": "ArgMax", "argmin": "ArgMin", "exp": "Exp", "log": "Log",
    "sqrt": "Sqrt", "rsqrt": "Rsqrt", "abs": "Abs", "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh",
    "silu": "Silu", "cumsum": "CumSum", "gather": "Gather", "index_select": "Gather", "scatter": "Scatter",
    "matmul": "GeMM", "mm": "GeMM", "bmm": "GeMM", "einsum": "GeMM", "dot": "GeMM", "maximum": "Maximum",
    "minimum": "Minimum", "where": "Where", "cat": "Concat", "concatenate": "Concat", "stack": "Concat",
    "permute": "Transpose", "transpose": "Transpose", "swapaxes": "Transpose", "reshape": "Split",
    "view": "Split", "flatten": "Merge", "to": "Cast", "type": "Cast", "astype": "Cast", "neg": "Neg",
    "normalize": "Normalize", "conv1d": "Conv1d", "max_pool1d": "MaxPool1d", "pow": "Pow", "add": "Add", "sub": "Sub",
    "mul": "Mul", "multiply": "Mul", "div": "Div", "sort": "topK", "kthvalue": "topK", "linalg_norm": "L2Norm",
    "linear": "GeMM", "clamp": "Maximum", "clip": "Maximum", "unique": "Union", "logical_not": "Not", "dist": "L2Norm",
}  # fmt: skip
"""torch's and numpy's name -> ours."""

CASTS = {"half": "fp16", "bfloat16": "bf16", "long": "int32", "bool": "bool"}
ALIGNED = (
    "unsqueeze",
    "squeeze",
    "expand",
    "expand_as",
    "broadcast_to",
    "repeat",
    "repeat_interleave",
    "view_as",
)
PLAIN = ("contiguous", "detach", "clone", "cpu", "cuda", "cuda", "float", "double", "requires_grad_", "numpy")
VALUES = ("item", "tolist", "numpy")
METADATA = {
    "size": "Sizes are in `x.shape`, the leading 1 included.",
    "dim": "The number of axes is `len(x.shape)`, the leading 1 included.",
    "ndim": "The number of axes is `len(x.shape)`, the leading 1 included.",
    "dtype": "Arithmetic is fp32; `Cast(x, \"bf16\")` says how an entry is stored.",
    "device": "A flow has no devices: it is compiled for the one it runs on.",
    "mT": "Write `x.T`: it swaps the last two axes.",
    "data": "Take `.data` out.",
}  # fmt: skip


def remedy_for(name: str) -> str:
    """What to write instead of torch's or numpy's `name`."""
    base = name.rstrip("_") if not name.startswith("_") else name
    if base in METADATA:
        return METADATA[base]
    if base in ALIGNED:
        return "Take it out: operands align by axis name."
    if base in CASTS:
        return f'Write `Cast(x, "{CASTS[base]}")`.'
    if base in PLAIN:
        return "Take it out: a flow has neither devices nor memory layouts, and arithmetic is fp32."
    target = IDIOMS.get(base)
    if target is None:
        return "`vortex ops` lists the operators."
    op = OPERATORS[target]
    shown = {"Split": 'Split(x, "token", sub=4, token=4)', "Merge": 'Merge(x, "token", "dim", to="feat")',
             "Cast": 'Cast(x, "bf16")'}.get(target)  # fmt: skip
    if shown is None:
        axis = ", dim=…" if "dim" in op.signature.parameters else ""
        operands = [
            each.name for each in op.signature.parameters.values() if str(each.annotation) == "TensorType"
        ]
        shown = f"{target}({', '.join(operands)}{axis})"
    return f"Write `{shown}`."


class Idiom:
    """Stands for a torch attribute that was reported already: it can be called, indexed and passed on quietly."""

    def __init__(self, x: Tensor) -> None:
        self._x = x

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._x

    def __getattr__(self, name: str) -> Tensor:
        return self._x

    def __getitem__(self, index: object) -> Tensor:
        return self._x

    def as_tensor(self, recorder: Any) -> Tensor:
        return self._x


def torch_idiom(x: Tensor, name: str) -> Any:
    recorder = current(f".{name}")
    if name in VALUES:
        recorder.report("item", what=f".{name}()")
    else:
        recorder.report("torch-idiom", name=f".{name}", remedy=remedy_for(name))
    return Idiom(recorder.unknown())


def foreign_call(library: str, name: str) -> Tensor:
    recorder = current(name)
    recorder.report("foreign-call", name=name, remedy=remedy_for(name.rsplit(".", 1)[-1]))
    return recorder.unknown()


def torch_function(function: Any) -> Any:
    name = getattr(function, "__name__", str(function))
    return foreign_call("torch", f"torch.{name}")


ARITHMETIC = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "true_divide": "Div", "power": "Pow",
    "floor_divide": "FloorDiv", "remainder": "Mod", "greater": "Greater", "greater_equal": "GreaterEqual",
    "less": "Less", "less_equal": "LessEqual", "equal": "Equal", "not_equal": "NotEqual",
}  # fmt: skip


def numpy_function(name: str, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`numpy scalar * tensor` is arithmetic; every other numpy function is foreign."""
    numbers = any(not isinstance(each, Tensor) and number(each) is not None for each in inputs)
    if method == "__call__" and name in ARITHMETIC and numbers and not kwargs:
        return OPERATORS[ARITHMETIC[name]](*inputs)
    return foreign_call("numpy", f"numpy.{name}")


@functools.lru_cache(maxsize=64)
def calls_by_place(file: str) -> dict[tuple[int, int, int, int], str]:
    """Names that are called in a file, by the place of the call, to tell `max(x)` from a branch on x."""
    try:
        with open(file, encoding="utf-8") as opened:
            tree = ast.parse(opened.read())
    except (OSError, SyntaxError, ValueError):
        return {}
    return {
        (node.lineno, node.col_offset + 1, node.end_lineno or 0, (node.end_col_offset or 0) + 1): node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def builtin_at(place: Location | None, file: str) -> str | None:
    """The builtin whose call stands at this place, if any."""
    if place is None:
        return None
    name = calls_by_place(file).get((place.line, place.column, place.end_line, place.end_column))
    return name if name in BUILTINS else None


def builtin_or(slug: str, **facts: Any) -> None:
    """Reports the builtin that asked, or else the mistake `slug`."""
    recorder = current("A tensor")
    name = builtin_at(recorder.locate(), recorder.file)
    if name is not None:
        recorder.report("builtin", name=name, remedy=BUILTINS[name])
    else:
        recorder.report(slug, **facts)


def branch(x: Tensor) -> bool:
    """Reports a branch; goes on with True once, and stops where the same branch comes again (a while loop)."""
    recorder = current("A tensor")
    place = recorder.locate()
    builtin_or("branch")
    if place in recorder.branches:
        raise StopMethod
    recorder.branches.add(place)
    return True
