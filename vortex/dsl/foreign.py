"""What Python, numpy and torch would do with a tensor of a flow, told in the words of the language."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import FrameType
from typing import Any

from vortex.dsl.calls import number
from vortex.dsl.registry import OPERATORS
from vortex.dsl.tensor import Tensor
from vortex.dsl.trace import ARRAY_REMEDY, Recorder, StopMethod, current

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
    "map": "Index an axis of known size: `[f(x[:, j]) for j in range(n)]`.",
    "reversed": "Index an axis of known size: `[x[:, j] for j in reversed(range(n))]`.",
    "set": "Use topK or Union: they make index sets.",
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
    "linear": "GeMM", "unique": "Union", "logical_not": "Not", "dist": "L2Norm",
}  # fmt: skip
"""torch's and numpy's name -> ours."""

CASTS = {"half": "fp16", "bfloat16": "bf16", "long": "int32", "bool": "bool"}
ALIGNED = ("unsqueeze", "squeeze", "expand", "expand_as", "expand_dims", "broadcast_to", "repeat", "repeat_interleave",
           "tile", "view_as")  # fmt: skip
PLAIN = ("contiguous", "detach", "clone", "copy", "cpu", "cuda", "float", "double", "requires_grad")
VALUES = ("item", "tolist", "numpy")
SPELLED_OUT = {
    "size": "Sizes are in `x.shape`, the leading 1 included.",
    "dim": "The number of axes is `len(x.shape)`, the leading 1 included.",
    "ndim": "The number of axes is `len(x.shape)`, the leading 1 included.",
    "dtype": "Arithmetic is fp32; `Cast(x, \"bf16\")` says how an entry is stored.",
    "device": "A flow has no devices: it is compiled for the one it runs on.",
    "mT": "Write `x.T`: it swaps the last two axes.",
    "data": "Take `.data` out.",
    "clamp": "Write `Minimum(Maximum(x, low), high)`.",
    "clip": "Write `Minimum(Maximum(x, low), high)`.",
    "square": "Write `x * x`.",
    "masked_fill": "Write `Where(mask, value, x)`.",
    "log2": "Write `Log(x) / 0.6931471805599453`.",
    "exp2": "Write `2.0 ** x`.",
    "softplus": "Write `Log(1 + Exp(x))`.",
    "var": "Write `Mean(x * x, dim=…) - Mean(x, dim=…) ** 2`.",
    "std": "Write `Sqrt(Mean(x * x, dim=…) - Mean(x, dim=…) ** 2)`.",
}  # fmt: skip


def remedy_for(name: str) -> str:
    """What to write instead of torch's or numpy's `name`."""
    base = name.rstrip("_") if not name.startswith("_") else name
    if base in SPELLED_OUT:
        return SPELLED_OUT[base]
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
             "Cast": 'Cast(x, "bf16")', "Concat": 'Concat(a, b, dim="token")', "Union": "Union(a, b)",
             "Conv1d": "Conv1d(x, [0.25, 0.5, 0.25])", "MaxPool1d": "MaxPool1d(x, 3)",
             "topK": "topK(x, k=…)"}.get(target)  # fmt: skip
    if shown is None:
        axis = ", dim=…" if "dim" in op.signature.parameters else ""
        operands = [
            each.name for each in op.signature.parameters.values() if str(each.annotation) == "TensorType"
        ]
        shown = f"{target}({', '.join(operands)}{axis})"
    return f"Write `{shown}`."


def torch_idiom(x: Tensor, name: str) -> Tensor:
    """Reports an attribute that tensors of a flow do not have; what it gives can be called and used quietly."""
    recorder = current(f".{name}")
    if name in VALUES:
        recorder.report("item", what=f".{name}()")
    else:
        recorder.report("torch-idiom", name=f".{name}", remedy=remedy_for(name))
    return recorder.unknown()


def foreign_call(library: str, name: str) -> Tensor:
    recorder = current(name)
    recorder.report("foreign-call", name=name, remedy=remedy_for(name.rsplit(".", 1)[-1]))
    return recorder.unknown()


def torch_function(function: Any, args: tuple[Any, ...]) -> Any:
    """torch called on a tensor of a flow, or arithmetic between one and a tensor of torch."""
    name = getattr(function, "__name__", str(function))
    if any(type(each).__module__.split(".")[0] == "torch" for each in args):
        return _array_operand("torch.Tensor")
    return foreign_call("torch", f"torch.{name.strip('_')}")


def _array_operand(given: str) -> Tensor:
    """Reports an array with values as an operand: a flow gets those as parameters."""
    recorder = current("An array")
    recorder.report("not-a-tensor", op="A flow", given=given, remedy=ARRAY_REMEDY)
    return recorder.unknown()


ARITHMETIC = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "true_divide": "Div", "power": "Pow",
    "floor_divide": "FloorDiv", "remainder": "Mod", "greater": "Greater", "greater_equal": "GreaterEqual",
    "less": "Less", "less_equal": "LessEqual", "equal": "Equal", "not_equal": "NotEqual",
}  # fmt: skip


def numpy_function(name: str, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`numpy scalar * tensor` is arithmetic; every other numpy function is foreign."""
    others = [each for each in inputs if not isinstance(each, Tensor)]
    if method == "__call__" and name in ARITHMETIC and not kwargs:
        if others and all(number(each) is not None for each in others):
            return OPERATORS[ARITHMETIC[name]](*inputs)
        if others:
            return _array_operand("numpy.ndarray")
    return foreign_call("numpy", f"numpy.{name}")


def called_at(recorder: Recorder) -> str:
    """What the author's line calls here (`max`, `math.sqrt`), or nothing."""
    place = recorder.locate()
    return recorder.source.calls.get(place, "") if place is not None else ""


def builtin_or(x: Tensor, slug: str, **facts: Any) -> None:
    """Reports the builtin or the function of `math` that asked, or else the mistake `slug`.

    A tensor that stands for an earlier mistake is let through.
    """
    recorder = current("A tensor")
    if x.type is None and x.state is None:
        return
    name = called_at(recorder)
    if name in BUILTINS:
        recorder.report("builtin", name=name, remedy=BUILTINS[name])
    elif name.startswith(("math.", "cmath.")):
        recorder.report("foreign-call", name=name, remedy=remedy_for(name.rsplit(".", 1)[-1]))
    else:
        recorder.report(slug, **facts)


ITERATE = {
    "what": "a tensor",
    "remedy": "Use an operator over the axis, or index an axis of known size: `[x[:, j] for j in range(n)]`.",
}
ITERATE_SET = {"what": "an index set", "remedy": "topK returns one set and no values: `i = topK(s)`."}


def iterate(x: Tensor, frame: FrameType) -> Iterator[Tensor]:
    """Reports an iteration; an assignment to several names gets as many unknown tensors."""
    is_set = x.type is not None and x.type.members is not None
    builtin_or(x, "iterate", **(ITERATE_SET if is_set else ITERATE))
    code = frame.f_code.co_code
    unpacks = code[frame.f_lasti] == dis.opmap["UNPACK_SEQUENCE"]
    unknown = current("A tensor").unknown()
    return iter((unknown,) * (code[frame.f_lasti + 1] if unpacks else 1))


def branch(x: Tensor) -> bool:
    """Reports a branch; goes on with True once, and stops where the same branch comes again (a while loop)."""
    recorder = current("A tensor")
    place = recorder.locate()
    builtin_or(x, "branch")
    if place in recorder.branches:
        raise StopMethod
    recorder.branches.add(place)
    return True
