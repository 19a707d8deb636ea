"""Operators as primitives: equal to the reference bit for bit, also where a row has nothing."""

from __future__ import annotations

import pytest
import torch
from flows import assert_same, evaluate, flow, ops

from vortex.codegen.decompose import decompose
from vortex.codegen.simplify import optimise
from vortex.dsl.verify import verify

MEAN = 'c["m"] = Mean(c["k"])'


def decomposed(program):
    result, rewrites = decompose(program)
    verify(result, "decompose")
    assert rewrites
    for which in ("cache", "indexer"):
        assert not {"Softmax", "Normalize", "L2Norm"} & set(ops(result, which))
    return result


@pytest.mark.parametrize(
    "text",
    [
        'Max(Softmax(GeMM(c["m"], q.T)), dim="head")',
        'Max(Softmax(GeMM(c["m"], q.T), dim=("block", "head")), dim="head")',
        'Max(Softmax(GeMM(q, c["m"].T), dim="head"), dim="head")',
        'Max(GeMM(Normalize(c["m"]), Normalize(q).T), dim="head")',
        'Max(Normalize(c["m"], dim=("block", "dim")), dim="dim")',
        'L2Norm(c["m"])',
        'Max(Softmax(Where(GeMM(c["m"], q.T) > 0, 1, 2)), dim="head")',
        'Max(Normalize(Where(c["m"] > 0, 70000, 3)), dim="dim")',
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_the_reference_bit_for_bit(tmp_path, text, dtype):
    program = flow(tmp_path, f"return topK({text})", MEAN)
    one, two = (evaluate(each, dtype=dtype) for each in (program, decomposed(program)))
    assert torch.equal(one.scores, two.scores) and one.chosen == two.chosen


def test_rows_of_only_minus_infinity_are_zeros(tmp_path):
    body = """
    some = Where(Positions().index % 2 == 0, GeMM(c["m"], q.T), float("-inf"))
    none = Where(Positions().index < 0, some, float("-inf"))
    c["none"] = Softmax(none, dim="head") + Softmax(none)
    c["rows"] = Softmax(some, dim="head")
    return topK(Max(c["none"] + c["rows"], dim="head"))
    """
    program = flow(tmp_path, body, MEAN)
    result = decomposed(program)
    assert_same(program, result, exact=True)
    stores = evaluate(result).stores
    assert not stores["none"].any() and not stores["rows"][1::2].any() and stores["rows"].isfinite().all()


def test_a_vector_of_zeros_stays_zero(tmp_path):
    program = flow(tmp_path, 'return topK(Max(Normalize(c["m"] * 0), dim="dim"))', MEAN)
    outcome = evaluate(decomposed(program))
    assert not outcome.scores.any()


def test_infinite_and_nan_scores_pass_as_in_the_reference(tmp_path):
    body = 's = GeMM(c["m"], q.T)\nreturn topK(Max(Softmax(Log(s) / Where(s > 2, 0.0, 1.0)), dim="head"))'
    program = flow(tmp_path, body, MEAN)
    assert_same(program, decomposed(program), exact=True)


def test_a_row_without_blocks_has_no_scores(tmp_path):
    program = flow(tmp_path, 'return topK(Max(Softmax(GeMM(c["m"], q.T)), dim="head"))', MEAN)
    outcome = evaluate(decomposed(program), blocks=0)
    assert outcome.chosen == [] and outcome.scores.shape == (0,)


def test_entries_are_decomposed_too_and_simplify_keeps_the_meaning(tmp_path):
    program = flow(
        tmp_path, 'return topK(Max(GeMM(c["n"], q.T), dim="head"))', 'c["n"] = Normalize(Mean(c["k"]))'
    )
    result = decomposed(program)
    assert_same(program, result, exact=True)
    assert_same(program, optimise(result)[0])
