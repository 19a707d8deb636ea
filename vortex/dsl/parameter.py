"""`Parameter`: a learned or chosen tensor of the model that a flow reads."""

from __future__ import annotations

import re
from typing import Any

from vortex.dsl.axes import Axis, TensorType
from vortex.dsl.ir import Location, Shape, Weight
from vortex.dsl.ops.elementwise import nearest_dtype
from vortex.dsl.problem import Problem
from vortex.dsl.registry import Inferred
from vortex.dsl.tensor import Tensor

INITS = ("normal", "zeros", "ones", "uniform", "orthogonal", "arange")
DTYPES = ("fp32", "bf16", "fp16", "int32", "bool")


class Parameter:
    """A named tensor, e.g. `Parameter("gate", "layer kv dim r=16", file="gate.safetensors")`.

    axes   names separated by spaces. `layer` and `kv` say that it differs by layer and KV head; they are
           indexed away. `head` and `dim` have the model's sizes, `token` the block size; others give theirs
    dtype  fp32, bf16, fp16, int32 or bool
    file   a safetensors file beside the algorithm file that holds a tensor of this name, `[layers,]
           [kv heads,] axes…`
    init   without a file: normal (standard deviation 1 / sqrt of the first axis), zeros, ones, uniform [0, 1),
           orthogonal, arange (0, 1, … along the last axis)
    seed   of normal, uniform and orthogonal
    """

    def __init__(
        self,
        name: str,
        axes: str,
        *,
        dtype: str = "fp32",
        file: str | None = None,
        init: str | None = None,
        seed: int = 0,
    ) -> None:
        self.name, self.axes, self.dtype, self.file, self.init, self.seed = (
            name,
            axes,
            dtype,
            file,
            init,
            seed,
        )

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, {self.axes!r})"

    def weight(self, shape: Shape, block_size: int) -> Weight:
        """The declaration with sizes of a model. Raises Problem."""
        if not isinstance(self.name, str) or not self.name:
            raise Problem("parameter-spec", name=repr(self.name), error="the name is no string")
        if self.dtype not in DTYPES:
            raise Problem(
                "unknown-dtype", dtype=self.dtype, near=nearest_dtype(self.dtype), names=", ".join(DTYPES)
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise Problem(
                "parameter-spec", name=self.name, error=f"the seed {self.seed!r} is no whole number"
            )
        if self.file is not None and not isinstance(self.file, str):
            raise Problem("parameter-source", name=self.name, error=f"the file {self.file!r} is no path")
        if (self.file is None) == (self.init is None):
            raise Problem("parameter-source", name=self.name, error="give either file or init")
        if self.init is not None and self.init not in INITS:
            raise Problem(
                "parameter-source", name=self.name, error=f"init {self.init!r} is none of {', '.join(INITS)}"
            )
        known = {"head": shape.group, "dim": shape.head_dim, "token": block_size}
        axes: list[Axis] = []
        leading: list[str] = []
        for word in str(self.axes).split():
            name, _, size = word.partition("=")
            if name in ("layer", "kv") and not size and not axes:
                leading.append(name)
                continue
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name in ("block", "layer", "kv"):
                raise Problem("parameter-spec", name=self.name, error=f"{word!r} cannot stand here")
            if not size and name not in known:
                raise Problem("parameter-spec", name=self.name, error=f"the axis {name} needs a size")
            if size and not (size.isascii() and size.isdigit() and 0 < int(size) < 2**31):
                raise Problem("parameter-spec", name=self.name, error=f"{word!r} has no positive size")
            axes.append(Axis(name, int(size) if size else known[name]))
        names = [axis.name for axis in axes]
        if len(set(names)) < len(names) or leading not in ([], ["layer"], ["kv"], ["layer", "kv"]):
            raise Problem(
                "parameter-spec", name=self.name, error="an axis is named twice, or kv before layer"
            )
        return Weight(self.name, tuple(axes), "layer" in leading, "kv" in leading, self.dtype,
                      self.file, self.init, self.seed)  # fmt: skip

    def as_tensor(self, recorder: Any) -> Tensor:
        """The parameter as an operand of the function that is being traced."""
        try:
            weight = self.weight(recorder.shape, recorder.block_size)
        except Problem as problem:
            recorder.report(problem.slug, **problem.facts)
            return recorder.unknown()
        known = recorder.weights.setdefault(weight.name, weight)
        if known != weight:
            recorder.report("parameter-spec", name=weight.name, error="two parameters have this name")
            return recorder.unknown()
        dtype = weight.dtype if weight.dtype in ("int32", "bool") else "fp32"
        place: Location | None = recorder.locate()
        return recorder.emit(
            "Weight", (), Inferred(TensorType(weight.axes, dtype), {"name": weight.name}), place
        )

    def __getattr__(self, name: str) -> Any:
        """Everything a tensor can do (`.T`, arithmetic through the operators) in a method that is traced."""
        if name.startswith("_"):
            raise AttributeError(name)
        from vortex.dsl.trace import current

        return getattr(self.as_tensor(current(f"Parameter.{name}")), name)

    def __getitem__(self, index: object) -> Any:
        from vortex.dsl.trace import current

        return self.as_tensor(current("A subscript"))[index]


def _forward(name: str) -> Any:
    def method(self: Parameter, *args: Any) -> Any:
        from vortex.dsl.trace import current

        return getattr(Tensor, name)(self.as_tensor(current("Parameter")), *args)

    return method


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow",
    "rpow", "and", "rand", "or", "ror", "xor", "rxor", "matmul", "rmatmul", "lt", "le", "gt", "ge", "neg", "abs",
    "invert", "bool", "iter", "len", "float", "int",
):  # fmt: skip
    setattr(Parameter, f"__{_name}__", _forward(f"__{_name}__"))
