"""Records the operators that a method applies: one recorder a function, one session a flow."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from vortex.dsl.axes import TensorType
from vortex.dsl.calls import Bound, bind, number
from vortex.dsl.diagnostics import Diagnostic, diagnose
from vortex.dsl.ir import Location, Node, Shape, Store
from vortex.dsl.ops.select import SECOND_INPUT
from vortex.dsl.policy import PolicyError
from vortex.dsl.problem import Problem
from vortex.dsl.registry import FUNCTION, OPERATORS, Inferred, Operator
from vortex.dsl.source import Source
from vortex.dsl.tensor import BlockCount, Tensor

NODE_LIMIT = 20_000
"""Operators one function may record: far beyond any method, well before memory is a concern."""

FINDING_LIMIT = 100
"""Findings after which a method is not traced further: a mistake in a long loop is told often enough."""


class StopMethod(Exception):
    """Ends the tracing of one method after an error that leaves nothing sensible to go on with."""


class Recorder:
    """Nodes and stores of one function while it is traced, and what was found wrong in it.

    source  the author's file: locations are the innermost frame that runs in it
    which   "cache" or "indexer"
    """

    def __init__(self, source: Source, which: str, shape: Shape) -> None:
        self.source = source
        self.file = source.path
        self.which = which
        self.shape = shape
        self.nodes: list[Node] = []
        self.stores: list[Store] = []
        self.findings: list[Diagnostic] = []
        self.branches: set[Location | None] = set()
        self.weights: dict[str, Any] = {}

    def locate(self) -> Location | None:
        """The author's expression that is being evaluated."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back  # type: ignore[assignment]
        if frame is None:
            return None
        return self.source.instruction(frame.f_code, frame.f_lasti, frame.f_lineno)

    def report(self, slug: str, location: Location | None = None, **facts: Any) -> None:
        finding = diagnose(slug, self.file, location or self.locate(), **facts)
        if finding in self.findings:
            return
        self.findings.append(finding)
        if len(self.findings) >= FINDING_LIMIT and RECORDER.get() is self:
            raise StopMethod

    def emit(
        self, op: str, inputs: tuple[int, ...], inferred: Inferred, location: Location | None = None
    ) -> Tensor:
        if len(self.nodes) >= NODE_LIMIT:
            self.report("unroll-limit", limit=NODE_LIMIT)
            raise StopMethod
        place = location or self.locate()
        result = fill_subset(inferred.type, inputs)
        self.nodes.append(Node(op, inputs, tuple(inferred.attrs.items()), result, place))
        return Tensor(self, result, len(self.nodes) - 1, place)

    def constant(self, value: float | int | bool) -> Tensor:
        # One object for NaN, so that a program equals itself read back from text.
        value = math.nan if value != value else value
        return self.emit("Const", (), OPERATORS["Const"].rule(value=value))

    def unknown(self) -> Tensor:
        return Tensor(self, None, location=self.locate())


def fill_subset(inferred: TensorType, inputs: tuple[int, ...]) -> TensorType:
    """A restricted block axis names the node of its index set; rules leave that number open."""
    if all(axis.subset != SECOND_INPUT for axis in inferred.axes):
        return inferred
    axes = tuple(
        replace(axis, subset=inputs[1]) if axis.subset == SECOND_INPUT else axis for axis in inferred.axes
    )
    return replace(inferred, axes=axes)


RECORDER: ContextVar[Recorder | None] = ContextVar("RECORDER", default=None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    token, function = RECORDER.set(recorder), FUNCTION.set(recorder.which)
    try:
        yield recorder
    finally:
        RECORDER.reset(token)
        FUNCTION.reset(function)


class OutsideFlow(Exception):
    """An operator was called where nothing records: in a class body or at the top of a file."""

    def __init__(self, op: str) -> None:
        super().__init__(f"{op} was used outside forward_cache and forward_indexer")
        self.op = op


def current(op: str) -> Recorder:
    recorder = RECORDER.get()
    if recorder is None:
        raise OutsideFlow(op)
    return recorder


ARRAY_REMEDY = (
    'Values from outside are parameters: `Parameter("name", "dim r=16", file="values.safetensors")`.'
)


def report(slug: str, **facts: Any) -> None:
    current("A tensor").report(slug, **facts)


def apply(op: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Records one application: binds the arguments, infers the type, appends the node. Errors become findings."""
    recorder = current(op.name)
    settings = [value for name, value in kwargs.items() if name != op.against]
    if any(isinstance(each, Tensor) and each.type is None for each in settings):
        return recorder.unknown()
    try:
        bound = bind(op, args, kwargs)
    except Problem as problem:
        recorder.report(problem.slug, **problem.facts)
        return recorder.unknown()
    _subtract(op, bound)
    operands: list[Tensor] = []
    positional: list[Any] = []
    for name, value, is_tensor in bound.positional:
        if not is_tensor:
            positional.append(value)
            continue
        tensor = _operand(recorder, op, name, value)
        if tensor is None:
            return recorder.unknown()
        operands.append(tensor)
        positional.append(tensor.type)
    if any(tensor.type is None for tensor in operands):
        return _apply_unknown(recorder, op, operands, bound.keyword)
    return _infer(recorder, op, operands, positional, bound.keyword)


def _subtract(op: Operator, bound: Bound) -> None:
    """A tensor given for the number `op.against` moves to the first operand, which is then compared with 0."""
    for place, (name, value, _) in enumerate(bound.positional):
        if name == op.against and (isinstance(value, Tensor) or hasattr(value, "as_tensor")):
            first, x, is_tensor = bound.positional[0]
            bound.positional[0] = (first, OPERATORS["Sub"](x, value), is_tensor)
            bound.positional[place] = (name, 0.0, False)


def sentence(text: str) -> str:
    """A hint as a sentence: a question keeps its mark."""
    return text[:1].upper() + text[1:] + ("" if text.endswith("?") else ".")


def own(recorder: Recorder, tensor: Tensor) -> Tensor:
    """The tensor, or an unknown one after a finding where it was made in another method or another trace."""
    if tensor.owner is recorder:
        return tensor
    recorder.report("other-method", which=f"forward_{tensor.owner.which}")
    return recorder.unknown()


def _operand(recorder: Recorder, op: Operator, name: str, value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return own(recorder, value)
    if hasattr(value, "as_tensor"):
        return value.as_tensor(recorder)
    if isinstance(value, BlockCount):
        recorder.report("block-count")
        return recorder.unknown()
    plain = number(value)
    if plain is not None:
        if isinstance(plain, int) and not isinstance(plain, bool) and abs(plain) >= 2**31:
            plain = float(plain)
        return recorder.constant(plain)
    remedy = 'Pass what an operator returned, c["name"], q, or a number.'
    if type(value).__module__.split(".")[0] in ("numpy", "torch"):
        remedy = ARRAY_REMEDY
    elif isinstance(value, list | tuple) and op.name in ("Concat", "Union"):
        remedy = f"Unpack it: `{op.name}(*xs…)`."
    elif value is None:
        remedy = "An operator was given nothing: does a helper lack its `return`?"
    elif isinstance(value, property) or "Positions" in (type(value).__name__, getattr(value, "__name__", "")):
        remedy = "Write `Positions().index`, or `Positions().from_end`."
    elif isinstance(value, Operator) or callable(value):
        remedy = "Call it first."
    given = "Positions" if "Positions()" in remedy else type(value).__name__
    recorder.report("not-a-tensor", op=op.name, given=given, remedy=remedy)
    return None


def _infer(
    recorder: Recorder, op: Operator, operands: list[Tensor], positional: list[Any], keyword: dict[str, Any]
) -> Any:
    try:
        inferred = op.rule(*positional, **keyword)
    except Problem as problem:
        recorder.report(problem.slug, **problem.facts)
        return recorder.unknown()
    except PolicyError as error:
        recorder.report("budget", text=repr(keyword.get("k", keyword.get("max"))), error=error.message,
                        remedy=sentence(error.remedy))  # fmt: skip
        return recorder.unknown()
    if op.name == "attn":
        return attend(recorder, operands)
    if op.family == "reduce":
        _lint_positional_block(recorder, op, operands[0].type, keyword.get("dim"))
    inputs = tuple(tensor.node for tensor in operands)
    return recorder.emit(op.name, inputs, inferred)


def _lint_positional_block(recorder: Recorder, op: Operator, x: TensorType | None, dim: object) -> None:
    """A reduction of `block` is rarely what a position was meant to say."""
    given = dim if isinstance(dim, tuple | list) else (dim,)
    for each in given:
        if isinstance(each, int) and x is not None and x.axes[each - (each > 0)].name == "block":
            recorder.report("positional-block", dim=each)


def _apply_unknown(recorder: Recorder, op: Operator, operands: list[Tensor], keyword: dict[str, Any]) -> Any:
    """What can be said while an operand's shape is unknown.

    A selection is a set of blocks whatever its scores are, and a sum with an unknown state has at least the
    other operand's axes: that is enough to find the shapes of states.
    """
    if op.name == "attn":
        return Attention(operands[-1] if operands[-1].type is not None else None)
    pending = all(tensor.state for tensor in operands if tensor.type is None)
    if not pending:
        return recorder.unknown()
    if op.name in ("topK", "topP", "Threshold") and keyword.get("dim", "block") in (
        "block",
        1,
        -1,
        ("block",),
    ):
        return recorder.emit("First", (), OPERATORS["First"].rule(0))
    known = [tensor for tensor in operands if tensor.type is not None and tensor.type.axes]
    if op.family == "elementwise" and known and op.name != "Cast":
        stand_in = recorder.constant(False if op.name in ("And", "Or", "Xor", "Not") else 0.0)
        filled = [stand_in if tensor.type is None else tensor for tensor in operands]
        if op.name == "Where" and operands[0].type is None:
            filled[0] = recorder.constant(False)
        return _infer(recorder, op, filled, [tensor.type for tensor in filled], keyword)
    name = next(tensor.state for tensor in operands if tensor.state)
    return Tensor(recorder, None, location=recorder.locate(), state=name)


class Attention:
    """What `attn(...)` returns: the set that is attended. An indexer can only return it."""

    def __init__(self, result: Tensor | None) -> None:
        self.result = result

    def as_tensor(self, recorder: Recorder) -> Tensor:
        recorder.report("attn-used")
        return recorder.unknown()

    def _used(self, *args: object) -> Tensor:
        return self.as_tensor(current("attn"))

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._used()


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "matmul", "rmatmul", "neg", "getitem"):
    setattr(Attention, f"__{_name}__", Attention._used)


def attend(recorder: Recorder, operands: list[Tensor]) -> Attention:
    for name, tensor in zip("qkv", operands[:3], strict=True):
        node = recorder.nodes[tensor.node]
        if node.op != "Input" or node.attr("name") != name:
            shown = f"{node.attr('name')}" if node.op == "Input" else f"the result of {node.op}"
            recorder.report("attn-inputs", given=shown, name=name)
    return Attention(operands[3])


def subscript(x: Tensor, index: object) -> Any:
    """`x[...]`, recorded as a slice."""
    from vortex.dsl.ops.shape import normal_index

    recorder = current("A subscript")
    given = index if isinstance(index, tuple) else (index,)
    if any(isinstance(each, Tensor) or hasattr(each, "as_tensor") for each in given):
        recorder.report("tensor-index")
        return recorder.unknown()
    x = own(recorder, x)
    if x.type is None:
        return Tensor(recorder, None, location=recorder.locate(), state=x.state)
    try:
        normal = normal_index(x.type, index)
    except Problem as problem:
        recorder.report(problem.slug, **problem.facts)
        return recorder.unknown()
    if all(each is None for each in normal):
        return x
    return _infer(recorder, OPERATORS["Slice"], [x], [x.type], {"index": normal})
