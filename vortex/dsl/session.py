"""Traces one flow: both methods, the fixed point of its states, and what it attends."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
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

STATE_ROUNDS = 8
"""Traces after which a state that still changes shape is refused."""


@dataclass
class Session:
    """One flow being traced; `findings` collects what is wrong in all of it."""

    flow: type[vFlow]
    source: Source
    shape: Shape
    view: View = PER_HEAD
    findings: list[Diagnostic] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)

    def report(self, slug: str, location: Location | None, **facts: Any) -> None:
        self.findings.append(diagnose(slug, self.source.path, location, **facts))

    def run(self, overrides: Mapping[str, Any]) -> Program | None:
        """The traced program, or None when anything but a lint was found."""
        values = overridden(self.flow, overrides, self._report_attribute)
        policy = check_policy(self.flow, values, self.shape.layers, self._report_attribute)
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
        return self._finish(policy, cache, indexer, uses)

    def _failed(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    def _report_attribute(self, slug: str, at: str, /, **facts: Any) -> None:
        place = self.source.attribute(self.flow.__name__, at, facts.pop("span", None))
        self.report(slug, place, **facts)

    def _check_attributes(self) -> None:
        own = own_attributes(self.flow)
        for key in own:
            if key not in self.reads:
                near = nearest(key, [*Policy.__dataclass_fields__, "forward_cache"])
                self._report_attribute("unread-attribute", key, key=key, near=near)
        for name in vars(self.flow):
            if name.startswith("forward") and name not in ("forward_cache", "forward_indexer"):
                near = nearest(name, ["forward_cache", "forward_indexer"])
                place = self.source.method(self.flow.__name__, name)
                self.report("unknown-method", place, method=name, near=near)

    def _trace_cache(self, block_size: int) -> FlowRecorder:
        recorder = FlowRecorder(self.source.path, "cache", self.shape, block_size, self.view)
        method = self._method("forward_cache", ("c",))
        if method is not None:
            result = self._call(recorder, "forward_cache", method, CacheView(recorder))
            if result is not None:
                recorder.report("cache-result", self.source.method(self.flow.__name__, "forward_cache"))
        self.findings += recorder.findings
        return recorder

    def _trace_indexer(
        self, block_size: int, cache: FlowRecorder
    ) -> tuple[FlowRecorder | None, dict[str, StateUse]]:
        method = self._method("forward_indexer", ("q", "c"))
        if method is None:
            if inspect.getattr_static(self.flow, "forward_indexer", None) is None:
                place = self.source.flow(self.flow.__name__)
                self.report("no-indexer", place, flow=self.flow.__name__)
            return None, {}
        known: dict[str, StateUse] | None = None
        for _ in range(STATE_ROUNDS):
            recorder = FlowRecorder(self.source.path, "indexer", self.shape, block_size, self.view)
            recorder.weights = cache.weights
            view = IndexerView(recorder, cache.entries, known)
            q = recorder.input("q")
            result = self._call(recorder, "forward_indexer", method, q, view)
            if view.settled():
                break
            known = view.uses
        else:
            view.report_growth()
        view.report_uses()
        if not any(finding.severity == "error" for finding in recorder.findings):
            self._resolve_result(recorder, result)
        self.findings += recorder.findings
        return recorder, view.uses

    def _method(self, name: str, wanted: tuple[str, ...]) -> Callable[..., Any] | None:
        """The method as a function of `wanted`, however it was written; None after a finding."""
        static = inspect.getattr_static(self.flow, name, None)
        if static is None:
            return None
        place = self.source.method(self.flow.__name__, name)
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
                return method(*args)
            except StopMethod:
                return STOPPED
            except RecursionError:
                recorder.report("recursion", self.source.method(self.flow.__name__, name))
            except (Exception, SystemExit) as error:
                place = self.source.raised(error) or self.source.method(self.flow.__name__, name)
                slug, facts = explain(error, name)
                recorder.report(slug, place, **facts)
        return STOPPED

    def _resolve_result(self, recorder: FlowRecorder, result: Any) -> None:
        place = self.source.method(self.flow.__name__, "forward_indexer")
        if isinstance(result, Attention):
            result = result.result
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
            recorder.report("scalar-result", place, given=f"a {type(result).__name__}")
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


def explain(error: BaseException, method: str) -> tuple[str, dict[str, Any]]:
    """The catalogue entry for what an author's method raised."""
    if isinstance(error, OutsideFlow):
        return "outside", {"op": error.op}
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return "raised", {"method": method, "error": one_line(text)}


def one_line(text: str, limit: int = 200) -> str:
    """Text that stays on one line of a report."""
    flat = text.encode("unicode_escape", "backslashreplace").decode() if not text.isprintable() else text
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."
