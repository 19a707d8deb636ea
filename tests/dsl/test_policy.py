"""Budgets and layer lists: exact values, the same in a kernel, and errors that point into the text."""

import math
import re
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from vortex.dsl.policy import MAX_TOKENS, Budget, Layers, PolicyError

PLACE = {"block_size": 16, "layer": 3, "layers": 28}


def evaluate(text, tokens, **place):
    return Budget.parse(text).evaluate(tokens=tokens, **(PLACE | place))


class Int64:
    """An int64 whose // floors or truncates, and which refuses to overflow."""

    def __init__(self, value, truncate):
        assert -(2**63) <= value < 2**63, "overflow"
        self.value, self.truncate = value, truncate

    def _make(self, value):
        return Int64(value, self.truncate)

    def __add__(self, other):
        return self._make(self.value + int(other))

    def __sub__(self, other):
        return self._make(self.value - int(other))

    def __rsub__(self, other):
        return self._make(other - self.value)

    def __mul__(self, other):
        return self._make(self.value * int(other))

    def __floordiv__(self, other):
        quotient = self.value // int(other)
        if self.truncate:
            quotient = math.trunc(Fraction(self.value, int(other)))
        return self._make(quotient)

    def __rfloordiv__(self, other):
        return self._make(other) // self

    def __neg__(self):
        return self._make(-self.value)

    def __int__(self):
        return self.value

    __radd__, __rmul__ = __add__, __mul__


def on_device(budget, tokens, truncate, **place):
    """The emitted text, run with int64 scalars."""
    place = PLACE | place
    text = budget.device_source(**place, minimum="low", maximum="high")

    def pick(function):
        return lambda a, b: Int64(function(int(a), int(b)), truncate)

    scalars = {
        "tokens": Int64(tokens, truncate),
        "blocks": Int64(-(-tokens // place["block_size"]), truncate),
        "low": pick(min),
        "high": pick(max),
    }
    return int(eval(text, {"__builtins__": {}}, scalars))


def extend(inner):
    pair = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        pair.map(lambda p: f"min({p[0]}, {p[1]})"),
        pair.map(lambda p: f"max({p[0]}, {p[1]}, 3)"),
        pair.map(lambda p: f"{p[0]} / max(1, {p[1]})"),
        pair.map(lambda p: f"{p[0]} / min(-2.5, {p[1]})"),
        st.tuples(inner, st.sampled_from(["7", "layers", "(layer + 2)", "-3", "block_size", "0.3"])).map(
            lambda t: f"{t[0]} / {t[1]}"
        ),
        inner.map(lambda e: f"-{e}"),
        inner.map(lambda e: f"floor({e})"),
        inner.map(lambda e: f"ceil({e})"),
    )


LEAVES = ["blocks", "tokens", "layer", "layers", "block_size", "12.5%", "0", "1", "2.75", "33%", "100"]
EXPRESSIONS = st.recursive(st.sampled_from(LEAVES), extend, max_leaves=7)


@pytest.mark.parametrize(
    ("text", "tokens", "blocks"),
    [
        ("max(32, 12.5% * blocks)", 1, 32),
        ("max(32, 12.5% * blocks)", 4097, 33),  # 257 blocks: 32.125
        ("10% * blocks", 160, 1),
        ("2048 / block_size", 100, 128),
        ("ceil(tokens / 3) - floor(tokens / 3)", 7, 1),
        ("floor(-tokens / 2) + 10", 5, 7),
        ("blocks - 2 - 1", 160, 7),
        ("100 / 10 / 3", 1, 4),
        ("2 + 3 * 4", 1, 14),
        ("-2 * -3", 1, 6),
        ("blocks * (layers - layer) / layers", 16 * 28, 25),
        (".5 * blocks", 48, 2),
        (" 7 ", 1, 7),
        (12, 1, 12),
    ],
)
def test_value(text, tokens, blocks):
    assert evaluate(text, tokens) == blocks
    assert on_device(Budget.parse(text), tokens, truncate=True) == blocks


def test_percent_of_blocks_never_rounds_an_integer_up():
    budget = Budget.parse("7% * blocks")
    for blocks in range(1, 20_000):
        exact = -(-7 * blocks // 100)
        assert budget.evaluate(tokens=blocks, block_size=1) == exact
    assert any(math.ceil(0.07 * b) != -(-7 * b // 100) for b in range(1, 20_000)), "floats would do"


@given(EXPRESSIONS, st.integers(1, MAX_TOKENS), st.integers(0, 27), st.sampled_from([1, 16, 128]))
@example("floor(-blocks / 7) + 3", 100, 0, 16)
@example("ceil((3 - tokens) / 7) / -2", 100, 0, 1)
@example("max(tokens / max(1, blocks), blocks / max(1, tokens))", MAX_TOKENS, 0, 1)
@settings(max_examples=300, deadline=None)
def test_device_text_equals_the_host_under_flooring_and_truncating_division(text, tokens, layer, block_size):
    try:
        budget = Budget.parse(text)
    except PolicyError as error:
        assume("64 bits" not in error.message and "large" not in error.message)
        raise
    place = {"layer": layer, "block_size": block_size}
    for length in {tokens, 1, MAX_TOKENS, tokens % 512 + 1}:
        expected = evaluate(text, length, **place)
        assert expected >= 0
        assert on_device(budget, length, truncate=False, **place) == expected
        assert on_device(budget, length, truncate=True, **place) == expected


def test_device_text_reads_like_the_formula():
    budget = Budget.parse("max(32, 12.5% * blocks)")
    text = budget.device_source(block_size=16, blocks="nb", minimum="tl.minimum", maximum="tl.maximum")
    assert text == "((tl.maximum(256, nb) + 7) // 8)"
    assert Budget.parse("tokens * layer").device_source(block_size=16) == "0"


@pytest.mark.parametrize(
    "text", ["tokens * tokens * tokens", "tokens * 1000000000000", "blocks / 3 * tokens * tokens"]
)
def test_an_integer_form_beyond_64_bits_is_refused(text):
    with pytest.raises(PolicyError, match="64 bits"):
        Budget.parse(text)


def test_a_continued_fraction_whose_text_doubles_is_refused():
    with pytest.raises(PolicyError, match="too large for a kernel"):
        Budget.parse("1+1/(" * 40 + "blocks" + ")" * 40)
    assert evaluate("1+1/(" * 5 + "blocks" + ")" * 5, 160) == 2


@pytest.mark.parametrize("text", ["1 / 0", "blocks / (blocks - 1)", "tokens / (3 - 3)", "1 / (tokens - 5)"])
def test_a_divisor_that_can_be_zero_is_refused(text):
    with pytest.raises(PolicyError, match=r"divisor can be zero; write max\(1") as caught:
        Budget.parse(text)
    assert caught.value.start > 0


def test_a_divisor_that_is_zero_at_one_layer_is_refused_there():
    budget = Budget.parse("blocks / layer")
    assert budget.evaluate(tokens=64, block_size=16, layer=2, layers=4) == 2
    with pytest.raises(PolicyError, match="divisor"):
        budget.evaluate(tokens=64, block_size=16, layer=0, layers=4)
    with pytest.raises(PolicyError, match="divisor"):
        budget.device_source(block_size=16, layer=0, layers=4)


def test_a_negative_budget_reserves_nothing():
    assert evaluate("3 - blocks", 16 * 10) == 0
    assert on_device(Budget.parse("3 - blocks"), 160, truncate=True) == 0


def test_a_padded_slot_has_no_budget():
    assert evaluate("32 + 100 / blocks", 0) == 0


@pytest.mark.parametrize(
    ("text", "start", "end", "words"),
    [
        ("max(32, 12.5% * block)", 16, 21, "did you mean blocks?"),
        ("maximum(1, 2)", 0, 7, "did you mean max?"),
        ("qqq", 0, 3, "there are blocks, tokens"),
        ("blocks % 4", 7, 8, "percent"),
        ("blocks // 4", 8, 9, "floor(a / b)"),
        ("blocks ** 2", 8, 9, "no powers"),
        ("blocks < 4", 7, 8, "no comparisons"),
        ("2 blocks", 2, 8, "operator or a comma"),
        ("blocks +", 8, 9, "ends too early"),
        ("max(1, 2", 8, 9, "closing parenthesis"),
        ("", 0, 1, "is empty"),
        ("max", 0, 3, "max is a function"),
        ("layers(2)", 0, 6, "is no function"),
        ("1 + floor(1, 2)", 4, 15, "write floor(a)"),
        ("min(3)", 0, 6, "write min(a, b)"),
        ("max()", 0, 5, "with 0 arguments"),
        ("blocks; import os", 6, 7, "';'"),
        ("１", 0, 1, "not expected"),
        ("1" * 300, 256, 300, "at most 256"),
        (-1, 0, 2, "write 0 or more"),
        (0.5, 0, 1, "12.5% * blocks"),
        (True, 0, 1, "12.5% * blocks"),
    ],
)
def test_error_points_at_its_cause(text, start, end, words):
    with pytest.raises(PolicyError, match=re.escape(words)) as caught:
        Budget.parse(text)
    assert (caught.value.start, caught.value.end) == (start, end)
    assert caught.value.message and caught.value.remedy


def test_the_deepest_text_that_is_allowed_parses():
    assert evaluate("(" * 127 + "1" + ")" * 127, 5) == 1
    assert evaluate("-" * 254 + "1", 5) == 1


@pytest.mark.parametrize("place", [{"layer": 28}, {"layer": -1}, {"block_size": 0}, {"layers": 1000}])
def test_a_place_that_no_model_has(place):
    with pytest.raises(ValueError, match="expected"):
        evaluate("1", 1, **place)


@pytest.mark.parametrize(
    ("text", "max_tokens", "covered"),
    [
        ("blocks", MAX_TOKENS, True),
        ("100%*blocks", 4096, True),
        ("max(32, 12.5% * blocks)", 512, True),
        ("max(32, 12.5% * blocks)", 513, False),
        ("256", 4096, True),
        ("256", 4097, False),
        ("99.9% * blocks", 16 * 1000 - 16, True),
        ("99.9% * blocks", 16 * 1000, False),
        ("min(blocks, max(0, blocks - 10) * 100)", 16 * 1000, False),  # covers long rows, not short ones
        ("tokens / 15", 100_000, True),
    ],
)
def test_covers(text, max_tokens, covered):
    assert Budget.parse(text).covers(max_tokens, 16, 3, 28) is covered


def test_is_constant():
    assert Budget.parse("32 + layer * 4").is_constant(**PLACE)
    assert Budget.parse("min(2048 / block_size, 100)").is_constant(**PLACE)
    assert not Budget.parse("12.5% * blocks").is_constant(**PLACE)
    assert Budget.parse("blocks * layer").is_constant(block_size=16, layer=0, layers=28)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", set()),
        ("  ", set()),
        ("0-1, 5, 30-", {0, 1, 5, 30, 31}),
        ("3", {3}),
        ("-1", {31}),
        ("-2-", {30, 31}),
        ("0-1,-2-", {0, 1, 30, 31}),
        ("28--2", {28, 29, 30}),
        (4, {4}),
        ([1, 2, -1], {1, 2, 31}),
        ((), set()),
        ("0-", set(range(32))),
    ],
)
def test_layers(text, numbers):
    assert Layers.parse(text).numbers(32) == numbers


@pytest.mark.parametrize(
    ("text", "start", "end", "words"),
    [
        ("0, 40", 3, 5, "write numbers from 0 to 31"),
        ("30-40", 0, 5, "write numbers from 0 to 31"),
        ("-33", 0, 3, "does not have"),
        ("1, 5-2", 3, 6, "write 2-5"),
        ("-0", 0, 2, "write 0, or -1"),
        ("1 2", 2, 3, "0-1, 5, 30-"),
        ("1,", 2, 3, "a number"),
        ("1;2", 1, 2, "';'"),
        (True, 0, 1, "numbers and ranges"),
    ],
)
def test_layers_error_points_at_its_cause(text, start, end, words):
    with pytest.raises(PolicyError, match=re.escape(words)) as caught:
        Layers.parse(text).numbers(32)
    assert (caught.value.start, caught.value.end) == (start, end)


def test_importing_the_module_imports_no_parser():
    code = "import sys, vortex.dsl.policy; print({'lark', 'numpy', 'torch', 'triton'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
