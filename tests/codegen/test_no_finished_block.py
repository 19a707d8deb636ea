"""Requests without a finished block: what a state takes from a reduction over nothing, and how it is guarded.

Language: section 4 says what such a reduction gives, section 8 how a state is kept from it.
"""

import math
import re
from pathlib import Path

import pytest

from tests.codegen.comparison import Comparison, Setup
from tests.vtensor.support import flow

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")

PAGE = Path(__file__).parents[2].joinpath("docs", "language.md").read_text(encoding="utf-8")
GUARDED = re.search(r"class Rising\(vFlow\):\n(.*?)```", PAGE, re.DOTALL)[1]
PLAIN = re.sub(r"Where\(some, (.*), old\)", r"\1", GUARDED).replace("        some = ", "        _ = ")


def levels(folder, body, reduction="Mean"):
    """The state after a request of 5 tokens finished its first block of 8, and that of one of 60 tokens.

    The comparison holds the kernels' states to the reference's in every step.
    """
    program = flow(folder, body.replace('Mean(s, dim="block")', f'{reduction}(s, dim="block")'), 3, 1,
                   block_size=8, budget=4)  # fmt: skip
    made = Comparison(program, [5, 60], Setup(layers=1), seed=1, most_steps=6).run(6)
    ours, reference = (
        made.memory.states[0]["level"].flatten(),
        made.memory32.states[0]["level"].data.flatten(),
    )
    for slot in made.slots.tolist():
        assert math.isfinite(ours[slot]) == math.isfinite(reference[slot])
    return [float(ours[slot]) for slot in made.slots.tolist()]


@pytest.mark.parametrize("reduction", ["Mean", "Max", "Min"])
def test_a_state_keeps_what_a_reduction_over_nothing_gave_it(tmp_path, reduction):
    short, long = levels(tmp_path, PLAIN, reduction)
    assert math.isnan(short) if reduction == "Mean" else math.isinf(short)
    assert math.isfinite(long)


@pytest.mark.parametrize("reduction", ["Mean", "Max", "Min"])
def test_the_guard_of_the_language_page_keeps_a_state_finite_and_lets_it_move(tmp_path, reduction):
    short, long = levels(tmp_path, GUARDED, reduction)
    assert math.isfinite(short) and short != 0.0
    assert math.isfinite(long) and long != 0.0
