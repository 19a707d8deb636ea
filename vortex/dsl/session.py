"""Traces one flow: both methods, the fixed point of its states, and what it attends."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vortex.dsl.diagnostics import Diagnostic, diagnose, nearest
from vortex.dsl.flow import READS, own_attributes, settings, vFlow
from vortex.dsl.hyper import check_policy, overridden
from vortex.dsl.ir import Entry, Function, Location, Policy, Program, Shape, State
from vortex.dsl.lint import lints
from vortex.dsl.ops.attention import check_result
from vortex.dsl.problem import Problem
from vortex.dsl.source import Source
from vortex.dsl.tensor import Tensor
from vortex.dsl.trace import Attention, OutsideFlow, StopMethod, recording
from vortex.dsl.view import PER_HEAD, View
from vortex.dsl.views import CacheView, FlowRecorder, IndexerView, StateUse


class OutOfTime(BaseException):
    """Raised from outside in whatever the author's code does once its time is over; tracing ends with a finding.

    No `except Exception` of the author's catches it.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.limit = f"{seconds:g}"


STATE_ROUNDS = 8
"""Traces after which a state that still changes shape is refused."""


@dataclass
class Session:
    """One flow being traced; `findings` collects what is wrong in all of it.

    known_model  whether `shape` is that of a model, not the stated default: layer numbers are checked then
    late         the time was over: what has not been traced is left
    """

    flow: type[vFlow]
    source: Source
    shape: Shape
    view: View = PER_HEAD
    known_model: bool = False
    findings: list[Diagnostic] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    late: bool = False

    def report(self, slug: str, location: Location | None, **facts: Any) -> None:
        self.findings.append(diagnose(slug, self.source.path, location, **facts))

    def run(self, overrides: Mapping[str, Any]) -> Program | None:
        """The traced program, or None when anything but a lint was found."""
        self.overrides = overrides
        values = overridden(self.flow, overrides, self._report_attribute)
        layers = self.shape.layers if self.known_model else None
        policy = check_policy(self.flow, values, layers, self._report_attribute)
        block_size = policy.block_size if policy is not None else 16
        values = {**values, "scale": self.shape.head_dim**-0.5}
        token = READS.set(self.reads)
        try:
            with settings(self.flow, values):
                cache = self._trace_cache(block_size)
                indexer, uses = self._trace_indexer(block_size, cache)
        finally:
            READS.reset(token)
        self._check_attributes()
        if indexer is None or policy is None or self._failed():
            return None
        if not self._state_runs(policy, uses):
            return None
        return self._finish(policy, cache, indexer, uses)

    def _failed(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    @property
    def _classes(self) -> list[type]:
        """The flow and the classes it inherits from, up to vFlow."""
        return list(self.flow.__mro__[: self.flow.__mro__.index(vFlow)])

    def _report_attribute(self, slug: str, at: str, /, **facts: Any) -> None:
        """A finding at the value of an attribute; one that was overridden from outside has no place in the file."""
        span = facts.pop("span", None)
        places = [] if at in self.overrides else [each.__name__ for each in self._classes]
        found = (self.source.attribute(name, at, span) for name in places)
        self.report(slug, next((place for place in found if place is not None), None), **facts)

    def _place_of_method(self, name: str) -> Location | None:
        """The `def` of a method in the class that defines it, or the flow where that is in another file."""
        for each in self._classes:
            if name in vars(each):
                return self.source.method(each.__name__, name) or self.source.flow(self.flow.__name__)
        return self.source.flow(self.flow.__name__)

    def _state_runs(self, policy: Policy, uses: dict[str, StateUse]) -> bool:
        """Whether the indexer runs in every step and layer, which a state needs."""
        names = ", ".join(repr(name) for name, use in uses.items() if use.stored)
        reused = {"reuse_steps": "steps", "reuse_layers": "layers"}
        wrong = [key for key in reused if names and getattr(policy, key) != 1]
        for key in wrong:
            self._report_attribute("reuse-state", key, names=names, what=reused[key], key=key)
        return not wrong

    def _check_attributes(self) -> None:
        read = self.reads | {name for each in self._classes for name in names_in(each)}
        for key in own_attributes(self.flow):
            if key in read:
                continue
            near = nearest(key, [*Policy.__dataclass_fields__, "forward_cache"])
            if near or key in self.overrides:
                self._report_attribute("unread-attribute", key, key=key, near=near)
            else:
                self._report_attribute("attribute-unread", key, key=key)
        for name in vars(self.flow):
            if name.startswith("forward") and name not in ("forward_cache", "forward_indexer"):
                near = nearest(name, ["forward_cache", "forward_indexer"])
                self.report("unknown-method", self._place_of_method(name), method=name, near=near)
        if any("__init__" in vars(each) for each in self._classes):
            self.report("init", self._place_of_method("__init__"), flow=self.flow.__name__)

    def _trace_cache(self, block_size: int) -> FlowRecorder:
        recorder = FlowRecorder(self.source, "cache", self.shape, block_size, self.view)
        method = self._method("forward_cache", ("c",))
        if method is not None:
            result = self._call(recorder, "forward_cache", method, CacheView(recorder))
            if result is not None and result is not STOPPED:
                recorder.report("cache-result", self._place_of_method("forward_cache"))
        self.findings += recorder.findings
        return recorder

    def _trace_indexer(
        self, block_size: int, cache: FlowRecorder
    ) -> tuple[FlowRecorder | None, dict[str, StateUse]]:
        if self.late:
            return None, {}
        method = self._method("forward_indexer", ("q", "c"))
        if method is None:
            if inspect.getattr_static(self.flow, "forward_indexer", None) is None and not self._failed():
                place = self.source.flow(self.flow.__name__)
                self.report("no-indexer", place, flow=self.flow.__name__)
            return None, {}
        recorder, view, result = self._fixed_point(method, block_size, cache, None)
        if view.shapeless() and not recorder.findings:
            # Nothing gives these states axes: they are single numbers, unless one is used as more than that.
            numbers = self._fixed_point(method, block_size, cache, view.as_numbers())
            if numbers[0].findings:
                view.report_shapeless()
            else:
                recorder, view, result = numbers
        if not any(finding.severity == "error" for finding in recorder.findings):
            self._resolve_result(recorder, result)
            failed = any(finding.severity == "error" for finding in recorder.findings)
            # A result that an earlier mistake left unknown was told there.
            if recorder.result is None and not failed and not self._failed():
                recorder.report("no-result", self._place_of_method("forward_indexer"))
        self.findings += recorder.findings
        return recorder, view.uses

    def _fixed_point(
        self,
        method: Callable[..., Any],
        block_size: int,
        cache: FlowRecorder,
        known: dict[str, StateUse] | None,
    ) -> tuple[FlowRecorder, IndexerView, Any]:
        """Traces the indexer until it assigns to its states what it reads; `known` is what is known of them."""
        for _ in range(STATE_ROUNDS):
            recorder = FlowRecorder(self.source, "indexer", self.shape, block_size, self.view)
            recorder.weights = dict(cache.weights)
            view = IndexerView(recorder, cache.entries, known)
            result = self._call(recorder, "forward_indexer", method, recorder.input("q"), view)
            if self.late or view.settled():
                break
            known = view.uses
        else:
            view.report_growth()
        return recorder, view, result

    def _method(self, name: str, wanted: tuple[str, ...]) -> Callable[..., Any] | None:
        """The method as a function of `wanted`, however it was written; None after a finding."""
        static = inspect.getattr_static(self.flow, name, None)
        if static is None:
            return None
        place = self._place_of_method(name)
        function = static.__func__ if isinstance(static, staticmethod | classmethod) else static
        if not inspect.isfunction(function):
            self.report(
                "signature", place, method=name, given=type(static).__name__, wanted=", ".join(wanted)
            )
            return None
        parameters = list(inspect.signature(function).parameters.values())
        required = [each.name for each in parameters if each.default is each.empty]
        bound = isinstance(static, classmethod) or (bool(required) and required[0] in ("self", "cls"))
        given = tuple(required[1:] if bound else required)
        plain = all(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)
        if len(given) != len(wanted) or not plain:
            if name == "forward_cache" and "q" in given:
                self.report("q-in-cache", place)
            else:
                shown = ", ".join(each.name for each in parameters) or "nothing"
                self.report("signature", place, method=name, given=f"({shown})", wanted=", ".join(wanted))
            return None
        if given != wanted and set(given) == set(wanted):
            shown = ", ".join(given)
            self.report("signature", place, method=name, given=f"({shown})", wanted=", ".join(wanted))
            return None
        if isinstance(static, classmethod):
            return lambda *args: function(self.flow, *args)
        if bound:
            instance = object.__new__(self.flow)
            return lambda *args: function(instance, *args)
        return function

    def _call(self, recorder: FlowRecorder, name: str, method: Callable[..., Any], *args: Any) -> Any:
        """Runs a method of the author; whatever it raises becomes a finding at the author's line."""
        with recording(recorder):
            try:
                result = method(*args)
                if inspect.isgenerator(result) or inspect.iscoroutine(result):
                    result.close()
                return result
            except StopMethod:
                return STOPPED
            except OutOfTime as error:
                self.late = True
                place = self.source.raised(error) or self._place_of_method(name)
                recorder.report("time-limit", place, limit=error.limit)
            except RecursionError:
                recorder.report("recursion", self._place_of_method(name))
            except (Exception, SystemExit) as error:
                place = self.source.raised(error) or self._place_of_method(name)
                slug, facts = explain(error, name)
                recorder.report(slug, place, **facts)
        return STOPPED

    def _resolve_result(self, recorder: FlowRecorder, result: Any) -> None:
        place = self._place_of_method("forward_indexer")
        if isinstance(result, Attention):
            result = result.result
            if result is None:
                return
        if result is STOPPED:
            return
        unused = recorder.unused_sets()
        if result is None:
            if not unused:
                recorder.report("no-result", place)
            elif len(unused) > 1:
                recorder.report("two-results", recorder.nodes[unused[-1]].location)
            else:
                recorder.result = unused[0]
            return
        if not isinstance(result, Tensor) and hasattr(result, "as_tensor"):
            with recording(recorder):
                result = result.as_tensor(recorder)
        if not isinstance(result, Tensor):
            recorder.report("scalar-result", place, given=described(result))
            return
        if result.owner is not recorder:
            recorder.report("other-method", place, which=f"forward_{result.owner.which}")
            return
        if result.type is None or result.node is None:
            return
        try:
            check_result(result.type, "The result")
        except Problem as problem:
            recorder.report(problem.slug, recorder.nodes[result.node].location, **problem.facts)
            return
        recorder.result = result.node
        for node in unused:
            if node != result.node:
                recorder.report("unused-set", recorder.nodes[node].location)

    def _finish(
        self, policy: Policy, cache: FlowRecorder, indexer: FlowRecorder, uses: dict[str, StateUse]
    ) -> Program:
        entries = []
        for name, tensor in cache.entries.items():
            assert tensor.type is not None
            storage = "kv" if tensor.type.dtype == "fp32" else tensor.type.dtype
            entries.append(Entry(name, tensor.type.axes, storage))
        states = [
            State(name, use.type.axes, "bool" if use.type.dtype == "bool" else "fp32", use.default or 0.0)
            for name, use in uses.items()
            if use.type is not None and use.stored
        ]
        program = Program(
            name=self.flow.__name__,
            file=self.source.path,
            shape=self.shape,
            policy=policy,
            cache=Function(tuple(cache.nodes), tuple(cache.stores)),
            indexer=Function(tuple(indexer.nodes), tuple(indexer.stores), indexer.result),
            entries=tuple(entries),
            states=tuple(states),
            weights=tuple(indexer.weights.values()),
        )
        self.findings += lints(program)
        return program


STOPPED = object()
"""What a method that ended early returned: nothing can be said about its result."""


def names_in(flow: type) -> Iterator[str]:
    """Names that the code of a class's methods mentions, read while tracing or not."""
    for value in vars(flow).values():
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        pending = [inner.__code__] if inspect.isfunction(inner) else []
        while pending:
            code = pending.pop()
            yield from code.co_names
            pending += [each for each in code.co_consts if inspect.iscode(each)]


def described(value: object) -> str:
    """What a value is, for a message: "a tuple", "an int"."""
    if value is True or value is False or isinstance(value, int | float):
        return f"the number {value!r}"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def explain(error: BaseException, method: str) -> tuple[str, dict[str, Any]]:
    """The catalogue entry for what an author's method raised."""
    if isinstance(error, OutsideFlow):
        return "outside", {"op": error.op}
    if isinstance(error, NameError) and not isinstance(error, UnboundLocalError) and error.name:
        return "unknown-operator", {"name": error.name, "near": ""}
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return "raised", {"method": method, "error": one_line(text)}


def one_line(text: str, limit: int = 200) -> str:
    """Text that stays on one line of a report."""
    flat = text.encode("unicode_escape", "backslashreplace").decode() if not text.isprintable() else text
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."
