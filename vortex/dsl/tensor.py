"""The symbolic tensor that methods of a flow compute with, and what Python's syntax does to it."""

from __future__ import annotations

import sys
from typing import Any

from vortex.dsl.axes import TensorType
from vortex.dsl.ir import Location
from vortex.dsl.registry import OPERATORS


class Tensor:
    """A value of a flow while it is traced. Frozen: every operation makes a new one.

    type   axes and dtype, or None where they are not known (after an error, or a state before its assignment)
    node   its number in the function that is being traced, or None with an unknown type
    state  name of the state it reads before anything assigned it, while its shape is being found
    """

    __slots__ = ("location", "node", "owner", "state", "type")
    __hash__ = object.__hash__

    def __init__(
        self,
        owner: Any,
        type: TensorType | None,
        node: int | None = None,
        location: Location | None = None,
        state: str | None = None,
    ) -> None:
        for name, value in (
            ("owner", owner),
            ("type", type),
            ("node", node),
            ("location", location),
            ("state", state),
        ):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Tensor{self.type}" if self.type is not None else "Tensor(?)"

    @property
    def T(self) -> Tensor:
        """The last two axes swapped."""
        return OPERATORS["Transpose"](self)

    @property
    def shape(self) -> tuple[object, ...]:
        """Sizes with the leading 1; `block` has no size while tracing, and using it as one is an error."""
        if self.type is None:
            return (1,)
        return (1, *(BlockCount(axis.name) if axis.size is None else axis.size for axis in self.type.axes))

    def __getitem__(self, index: object) -> Any:
        from vortex.dsl.trace import subscript

        return subscript(self, index)

    def __getattr__(self, name: str) -> Any:
        from vortex.dsl.foreign import torch_idiom

        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return torch_idiom(self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """A torch method that was reported already goes on quietly; any other tensor cannot be called."""
        if self.type is not None:
            self._refuse("called")
        return self

    def __setattr__(self, name: str, value: object) -> None:
        self._refuse("inplace")

    def __setitem__(self, index: object, value: object) -> None:
        self._refuse("inplace")

    def __delitem__(self, index: object) -> None:
        self._refuse("inplace")

    def _refuse(self, slug: str, **facts: Any) -> None:
        from vortex.dsl.trace import report

        report(slug, **facts)

    def __pos__(self) -> Tensor:
        return self

    def __bool__(self) -> bool:
        from vortex.dsl.foreign import branch

        return branch(self)

    def __iter__(self) -> Any:
        from vortex.dsl.foreign import iterate

        return iterate(self, sys._getframe(1))

    def __len__(self) -> int:
        from vortex.dsl.foreign import ITERATE, builtin_or

        builtin_or(self, "iterate", **ITERATE)
        return 1

    def __contains__(self, item: object) -> bool:
        from vortex.dsl.foreign import ITERATE

        self._refuse("iterate", **ITERATE)
        return False

    def _value(self, what: str) -> None:
        from vortex.dsl.foreign import builtin_or

        builtin_or(self, "item", what=what)

    def __float__(self) -> float:
        self._value("float()")
        return 1.0

    def __int__(self) -> int:
        self._value("int()")
        return 1

    def __index__(self) -> int:
        self._value("An index or a range")
        return 1

    def __complex__(self) -> complex:
        self._value("complex()")
        return 1.0

    def __round__(self, digits: int | None = None) -> Tensor:
        self._value("round()")
        return self

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        from vortex.dsl.foreign import foreign_call

        foreign_call("numpy", "a numpy function")
        raise TypeError("a tensor of a flow has no values")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from vortex.dsl.foreign import numpy_function

        return numpy_function(ufunc.__name__, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from vortex.dsl.foreign import numpy_function

        return numpy_function(function.__name__, "function", args, kwargs)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from vortex.dsl.foreign import torch_function

        return torch_function(function, args)


def _binary(name: str, reflected: bool = False) -> Any:
    def method(self: Tensor, other: Any) -> Any:
        return OPERATORS[name](other, self) if reflected else OPERATORS[name](self, other)

    return method


def _unary(name: str) -> Any:
    return lambda self: OPERATORS[name](self)


class BlockCount(str):
    """Stands in a shape for the number of blocks, which differs by request."""

    def _unknown(self, *args: object) -> int:
        from vortex.dsl.trace import report

        report("block-count")
        return 1


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow",
    "rpow", "lt", "le", "gt", "ge", "neg", "index", "int", "float",
):  # fmt: skip
    setattr(BlockCount, f"__{_name}__", BlockCount._unknown)

for _name, _op in {
    "add": "Add", "sub": "Sub", "mul": "Mul", "truediv": "Div", "floordiv": "FloorDiv", "mod": "Mod", "pow": "Pow",
    "and": "And", "or": "Or", "xor": "Xor", "matmul": "GeMM",
}.items():  # fmt: skip
    setattr(Tensor, f"__{_name}__", _binary(_op))
    setattr(Tensor, f"__r{_name}__", _binary(_op, reflected=True))
for _name, _op in {
    "lt": "Less", "le": "LessEqual", "gt": "Greater", "ge": "GreaterEqual", "eq": "Equal", "ne": "NotEqual",
}.items():  # fmt: skip
    setattr(Tensor, f"__{_name}__", _binary(_op))
for _name, _op in {"neg": "Neg", "abs": "Abs", "invert": "Not"}.items():
    setattr(Tensor, f"__{_name}__", _unary(_op))
