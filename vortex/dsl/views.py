"""`c`, as forward_cache and forward_indexer see it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from vortex.dsl.axes import BLOCK, TensorType, computed
from vortex.dsl.calls import number
from vortex.dsl.diagnostics import nearest
from vortex.dsl.ir import Location, Node, Shape, Store
from vortex.dsl.ops.select import is_block_set
from vortex.dsl.source import Source
from vortex.dsl.tensor import Tensor
from vortex.dsl.trace import ARRAY_REMEDY, Recorder, own
from vortex.dsl.view import View


class FlowRecorder(Recorder):
    """A recorder that also knows the model's inputs and what the function has stored."""

    def __init__(self, source: Source, which: str, shape: Shape, block_size: int, view: View) -> None:
        super().__init__(source, which, shape)
        self.block_size = block_size
        self.view = view
        self.entries: dict[str, Tensor] = {}
        self.result: int | None = None
        self.leaves: dict[tuple[str, str], Tensor] = {}

    def leaf(self, op: str, name: str, type: TensorType) -> Tensor:
        """An input, entry or state; each is recorded once."""
        if (op, name) not in self.leaves:
            self.nodes.append(Node(op, (), (("name", name),), type, self.locate()))
            self.leaves[op, name] = Tensor(self, type, len(self.nodes) - 1, self.nodes[-1].location)
        return self.leaves[op, name]

    def input(self, name: str) -> Tensor:
        return self.leaf("Input", name, self.view.type(name, self.which, self.shape, self.block_size))

    def store(self, name: str, value: Tensor) -> None:
        self.stores = [each for each in self.stores if each.name != name]
        assert value.node is not None
        self.stores.append(Store(name, value.node, self.locate()))

    def unused_sets(self) -> list[int]:
        """Sets of blocks that no operator and no store consumes."""
        used = {each for node in self.nodes for each in node.inputs} | {store.value for store in self.stores}
        used |= {axis.subset for node in self.nodes for axis in node.type.axes if axis.subset is not None}
        return [
            number
            for number, node in enumerate(self.nodes)
            if node.type.members is not None and number not in used and is_block_set(node.type)
        ]

    def name_of(self, key: object) -> str | None:
        if isinstance(key, str):
            return key
        self.report("entry-name", given=type(key).__name__)
        return None

    def value_of(self, name: str, value: object) -> Tensor | None:
        """What is assigned, as a tensor; None after a finding."""
        if isinstance(value, Tensor):
            return own(self, value)
        if hasattr(value, "as_tensor"):
            return value.as_tensor(self)
        plain = number(value)
        if plain is not None:
            return self.constant(plain)
        array = type(value).__module__.split(".")[0] in ("numpy", "torch")
        self.report("not-a-tensor", op=f"c[{name!r}]", given=type(value).__name__,
                    remedy=ARRAY_REMEDY if array else "Assign what an operator returned.")  # fmt: skip
        return None


class _Common:
    """What both views share."""

    def __init__(self, recorder: FlowRecorder) -> None:
        self._recorder = recorder

    def __contains__(self, name: object) -> bool:
        self._recorder.report("membership", name=name)
        return False

    def __getattr__(self, name: str) -> Any:
        """`c.k` and dictionary methods: reported with what to write."""
        if name.startswith("_"):
            raise AttributeError(name)
        known = [each.name for each in self._recorder.view.inputs]
        entry = name in known or name in self._recorder.entries or name in getattr(self, "_entries", {})
        remedy = (
            f'Write `c["{name}"]`.'
            if entry
            else 'Read with `c["name"]` or `c.get("name", 0.0)`, write with `c["name"] = …`.'
        )
        self._recorder.report("view-attribute", name=name, remedy=remedy)
        return self._recorder.unknown()

    def __delitem__(self, name: object) -> None:
        self._recorder.report("delete")

    def __iter__(self) -> Any:
        self._recorder.report("view-attribute", name="list of entries", remedy='Read with `c["name"]`.')
        return iter(())

    def _refuses(self, name: str) -> bool:
        if self._recorder.view.find(name) is not None:
            self._recorder.report("write-input", name=name)
            return True
        return False


class CacheView(_Common):
    """`c` in forward_cache: k and v of one finished block, and the entries written so far."""

    def __getitem__(self, key: object) -> Tensor:
        recorder = self._recorder
        name = recorder.name_of(key)
        if name is None:
            return recorder.unknown()
        declared = recorder.view.find(name)
        if declared is not None and declared.cached:
            return recorder.input(name)
        if name in recorder.entries:
            return recorder.entries[name]
        if declared is not None:
            recorder.report("q-in-cache")
            return recorder.unknown()
        cached = [each.name for each in recorder.view.inputs if each.cached]
        recorder.report("cache-read", name=name, near=nearest(name, [*cached, *recorder.entries]))
        return recorder.unknown()

    def get(self, key: object, default: object = None) -> Tensor:
        return self[key]

    def __setitem__(self, key: object, value: object) -> None:
        recorder = self._recorder
        name = recorder.name_of(key)
        if name is None or self._refuses(name):
            return
        tensor = recorder.value_of(name, value)
        if tensor is None:
            return
        if tensor.type is None:
            recorder.entries.setdefault(name, tensor)
            return
        if not isinstance(value, Tensor) and number(value) is not None:
            recorder.report("entry-scalar", name=name, given="a number")
            recorder.entries.setdefault(name, recorder.unknown())
            return
        if tensor.type.members is not None:
            tensor = Tensor(recorder, TensorType(tensor.type.axes, "bool"), tensor.node, tensor.location)
        before = recorder.entries.get(name)
        if before is not None and before.type is not None and before.type != tensor.type:
            recorder.report("entry-twice", name=name, first=before.type, second=tensor.type)
            return
        recorder.entries[name] = tensor
        recorder.store(name, tensor)


@dataclass
class StateUse:
    """How the indexer uses one name: as a state once something stores it.

    type      what the last trace assigned, None where that is not known yet
    default   of `c.get`, or None where it was only read by subscript
    """

    type: TensorType | None = None
    default: float | bool | None = None
    stored: bool = False
    read_at: Location | None = None
    stored_at: Location | None = None


class IndexerView(_Common):
    """`c` in forward_indexer: k and v of all blocks, entries, and states.

    known  what the trace before this one learned of states; None in the first trace
    """

    def __init__(
        self, recorder: FlowRecorder, entries: dict[str, Tensor], known: dict[str, StateUse] | None
    ) -> None:
        super().__init__(recorder)
        self._entries = entries
        self._known = known
        self.uses: dict[str, StateUse] = {}
        self._assigned: dict[str, Tensor] = {}

    def __getitem__(self, key: object) -> Tensor:
        return self._read(key, None)

    def get(self, key: object, default: object = 0.0) -> Tensor:
        plain = number(default)
        if plain is None:
            given = "a tensor" if isinstance(default, Tensor) else type(default).__name__
            self._recorder.report("state-default", name=key, given=given)
            plain = 0.0
        plain = math.nan if plain != plain else plain
        return self._read(key, plain)

    def _read(self, key: object, default: float | bool | None) -> Tensor:
        recorder = self._recorder
        name = recorder.name_of(key)
        if name is None:
            return recorder.unknown()
        if recorder.view.find(name) is not None:
            return recorder.input(name)
        if name in self._assigned:
            return self._assigned[name]
        if name in self._entries:
            return self._entry(name)
        use = self.uses.setdefault(name, StateUse())
        use.read_at = use.read_at or recorder.locate()
        if default is not None and use.default not in (None, default):
            recorder.report("state-defaults", name=name, first=use.default, second=default)
        use.default = default if default is not None else use.default
        if self._known is None:
            return Tensor(recorder, None, location=recorder.locate(), state=name)
        before = self._known.get(name)
        if before is None or not before.stored:
            names = [*(each.name for each in recorder.view.inputs), *self._entries]
            names += [each for each, state in self._known.items() if state.stored]
            recorder.report("unknown-entry", name=name, near=nearest(name, names))
            return recorder.unknown()
        if before.type is None:
            return Tensor(recorder, None, location=recorder.locate(), state=name)
        return recorder.leaf("State", name, before.type)

    def _entry(self, name: str) -> Tensor:
        stored = self._entries[name]
        if stored.type is None:
            return self._recorder.unknown()
        read = TensorType((BLOCK, *stored.type.axes), computed(stored.type.dtype))
        return self._recorder.leaf("Entry", name, read)

    def __setitem__(self, key: object, value: object) -> None:
        recorder = self._recorder
        name = recorder.name_of(key)
        if name is None or self._refuses(name):
            return
        if name in self._entries:
            if self._entries[name].type is not None:
                recorder.report("entry-and-state", name=name)
            return
        tensor = recorder.value_of(name, value)
        use = self.uses.setdefault(name, StateUse())
        use.stored, use.stored_at = True, use.stored_at or recorder.locate()
        if tensor is None or tensor.type is None:
            self._assigned[name] = tensor if tensor is not None else recorder.unknown()
            return
        if any(axis.subset is not None for axis in tensor.type.axes):
            recorder.report("state-restricted", name=name)
            self._assigned[name] = recorder.unknown()
            return
        use.type = TensorType(tensor.type.axes, "bool" if tensor.type.dtype == "bool" else "fp32")
        self._assigned[name] = tensor
        recorder.store(name, tensor)

    def settled(self) -> bool:
        """Whether this trace assumed of every state what it then assigned."""
        if not self.uses:
            return True
        if self._known is None:
            return False
        return all(
            use.type == self._known[name].type
            for name, use in self.uses.items()
            if use.stored and name in self._known
        ) and all(name in self._known for name in self.uses)

    def report_growth(self) -> None:
        for name, use in self.uses.items():
            before = (self._known or {}).get(name)
            if use.stored and before is not None and before.type != use.type:
                self._recorder.report(
                    "state-grows", use.stored_at, name=name, first=before.type, second=use.type
                )

    def shapeless(self) -> dict[str, StateUse]:
        """States that only expressions of states are assigned to."""
        return {name: use for name, use in self.uses.items() if use.stored and use.type is None}

    def as_numbers(self) -> dict[str, StateUse]:
        """What is known of the states, shapeless ones taken for single numbers."""
        numbers = {
            name: replace(use, type=TensorType((), "bool" if isinstance(use.default, bool) else "fp32"))
            for name, use in self.shapeless().items()
        }
        return {**self.uses, **numbers}

    def report_shapeless(self) -> None:
        for name, use in self.shapeless().items():
            self._recorder.report("state-shape", use.stored_at, name=name)
