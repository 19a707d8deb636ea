"""Algebra that saves work: each rule agrees with the program it replaces, and applies only where it may."""

from __future__ import annotations

import pytest
import torch
from flows import assert_same, evaluate, flow, ops

from vortex.codegen import rewrite
from vortex.codegen.bounds import finite
from vortex.codegen.cost import worthwhile
from vortex.codegen.edit import sweep
from vortex.codegen.simplify import optimise
from vortex.dsl.verify import verify

MEAN = 'c["m"] = Mean(c["k"])'
BOX = 'c["hi"] = Max(c["k"])\nc["lo"] = Min(c["k"])'


def only(program, rule):
    """The program after one rule, swept until it applies nowhere, and what it rewrote."""
    rewrites = []
    for which in ("cache", "indexer"):
        found = True
        while found:
            program, found = sweep(program, which, rule.__name__, (rule,), worthwhile)
            rewrites += found
    return verify(program, rule.__name__), rewrites


def rewritten(tmp_path, rule, indexer, cache="", scores=True, **policy):
    program = flow(tmp_path, indexer, cache, **policy)
    result, rewrites = only(program, rule)
    for seed in range(3):
        assert_same(program, result, seed, scores=scores)
    return result, rewrites


@pytest.mark.parametrize("reduction", ["Mean", "Sum"])
@pytest.mark.parametrize(
    "text",
    [
        '{}(GeMM(c["m"], q.T), dim="head")',
        '{}(GeMM(q, c["m"].T), dim="head")',
        '{}(GeMM(c["m"], q.T).T, dim="head")',
        '{}(Neg(GeMM(c["m"], q.T)) * 0.5, dim="head")',
        '{}(GeMM(c["m"], q.T) + GeMM(c["m"], Abs(q).T) - 1.0, dim="head")',
        '{}(GeMM(c["m"], q.T) * Sigmoid(Mean(c["m"], dim="dim")), dim="head")',
        '{}(GeMM(c["m"], GeMM(q, Parameter("w", "dim r=8", init="normal", seed=1)).T), dim="head")',
        '{}(GeMM(c["m"] + 1, q.T) / 3, dim="head")',
        '{}(Conv1d(GeMM(c["m"], q.T), [0.5, 1.0, 0.5]), dim="head")',
        '{}(GeMM(c["m"], q.T) + Mean(c["m"], dim="dim"), dim="head")',
    ],
)
def test_a_reduction_over_heads_becomes_one_product(tmp_path, reduction, text):
    result, rewrites = rewritten(
        tmp_path, rewrite.push_reduction, f"return topK({text.format(reduction)})", MEAN
    )
    assert rewrites
    for node in result.indexer.nodes:
        assert not (node.type.axis("block") and node.type.axis("head")), node


def test_a_reduction_over_tokens_and_heads_moves_into_both_operands(tmp_path):
    result, _ = rewritten(
        tmp_path, rewrite.push_reduction, 'return topK(Mean(GeMM(c["k"], q.T), dim=("token", "head")))'
    )
    assert ops(result).count("Mean") == 2 and ops(result)[-2] == "GeMM"


def test_a_broadcast_product_becomes_a_gemm(tmp_path):
    result, _ = rewritten(
        tmp_path,
        rewrite.push_reduction,
        's = Sum(q * c["m"], dim="dim")\nreturn topK(Max(s, dim="head"))',
        MEAN,
    )
    assert "GeMM" in ops(result) and "Mul" not in ops(result)


def test_a_mean_of_a_product_keeps_its_size(tmp_path):
    result, _ = rewritten(
        tmp_path,
        rewrite.push_reduction,
        's = Mean(q * c["m"], dim="dim")\nreturn topK(Max(s, dim="head"))',
        MEAN,
    )
    assert "GeMM" in ops(result)


def test_a_sum_over_both_axes_of_a_product_is_one_vector_product(tmp_path):
    result, _ = rewritten(
        tmp_path, rewrite.push_reduction, 'return topK(Sum(q * c["m"], dim=("dim", "head")))', MEAN
    )
    assert "Mul" not in ops(result)
    assert next(node for node in result.indexer.nodes if node.op == "GeMM").type.names == ("block",)


def test_a_restricted_block_axis_follows_its_set_through_a_rewrite(tmp_path):
    body = """
    rough = topK(Mean(GeMM(c["m"], q.T), dim="head"), k=20)
    return topK(Mean(GeMM(Gather(c["k"], rough), q.T), dim=("token", "head")))
    """
    _, rewrites = rewritten(tmp_path, rewrite.push_reduction, body, MEAN)
    assert len(rewrites) == 2
    assert_same(flow(tmp_path, body, MEAN), optimise(flow(tmp_path, body, MEAN))[0])


@pytest.mark.parametrize(
    "text",
    [
        'Mean(Cast(GeMM(c["m"], q.T), "bf16"), dim="head")',
        'Mean(Exp(GeMM(c["m"], q.T)), dim="head")',
        'Mean(Softmax(GeMM(c["m"], q.T)), dim="head")',
        'Sum(GeMM(c["m"], q.T) * Rsqrt(Relu(Mean(c["m"], dim="dim"))), dim="head")',
        'Sum(GeMM(c["m"], q.T) / Relu(Mean(c["m"], dim="dim")), dim="head")',
        'Sum(GeMM(q, Log(c["m"]).T), dim="head")',
        'Sum(c["m"] * Log(c["m"]), dim="dim")',
    ],
)
def test_sums_stay_where_a_cast_a_curve_or_an_infinity_stands(tmp_path, text):
    _, rewrites = rewritten(tmp_path, rewrite.push_reduction, f"return topK({text})", MEAN)
    assert not rewrites


def test_a_product_that_is_needed_elsewhere_is_not_computed_twice(tmp_path):
    body = 's = GeMM(c["m"], q.T)\nc["s"] = s\nreturn topK(Mean(s, dim="head"))'
    _, rewrites = rewritten(tmp_path, rewrite.push_reduction, body, MEAN)
    assert not rewrites


def test_the_box_bound_is_two_products(tmp_path):
    body = 'return topK(Max(Sum(Maximum(q * c["hi"], q * c["lo"]), dim="dim"), dim="head"))'
    result, _ = rewritten(tmp_path, rewrite.box_bound, body, BOX)
    assert ops(result).count("GeMM") == 2 and "Mul" not in ops(result)
    # hi >= lo is proven by how they are stored: no comparison over blocks.
    assert not any(
        node.op in ("Maximum", "Minimum") and node.type.axis("block") for node in result.indexer.nodes
    )


def test_the_lower_bound_of_a_box_takes_the_other_corners(tmp_path):
    body = 'return topK(Max(Sum(Minimum(c["lo"] * q, q * c["hi"]), dim="dim"), dim="head"))'
    result, rewrites = rewritten(tmp_path, rewrite.box_bound, body, BOX)
    assert rewrites and ops(result).count("GeMM") == 2


@pytest.mark.parametrize("storage", ["int8", "int4"])
def test_boxes_with_scales_of_their_own_are_ordered_first(tmp_path, storage):
    cache = f'c["hi"] = Cast(Max(c["k"]), "{storage}")\nc["lo"] = Cast(Min(c["k"]), "{storage}")'
    body = 'return topK(Max(Sum(Maximum(q * c["hi"], q * c["lo"]), dim="dim"), dim="head"))'
    result, _ = rewritten(tmp_path, rewrite.box_bound, body, cache)
    assert any(node.op == "Maximum" and node.type.axis("block") for node in result.indexer.nodes)


def test_two_values_of_unknown_order_keep_their_meaning(tmp_path):
    cache = 'c["hi"] = Max(c["k"])\nc["lo"] = Max(c["v"])'
    body = 'return topK(Max(Sum(Maximum(q * c["hi"], q * c["lo"]), dim="dim"), dim="head"))'
    _, rewrites = rewritten(tmp_path, rewrite.box_bound, body, cache)
    assert rewrites


def test_a_box_that_may_be_infinite_stays(tmp_path):
    cache = 'c["hi"] = Log(Max(c["k"]))\nc["lo"] = Log(Min(c["k"]))'
    body = 'return topK(Max(Sum(Maximum(q * c["hi"], q * c["lo"]), dim="dim"), dim="head"))'
    _, rewrites = rewritten(tmp_path, rewrite.box_bound, body, cache)
    assert not rewrites


@pytest.mark.parametrize(
    "text",
    [
        'Max(GeMM(c["m"], q.T) * 0.25, dim="head")',
        'Max(GeMM(c["m"], q.T), dim="head") / 3',
        'Max(GeMM(c["m"] * 2.0, q.T), dim="head")',
        'MaxPool1d(Max(GeMM(c["m"], q.T), dim="head") * 7, 3)',
        'Max(GeMM(c["m"], q.T), dim="head") + 5',
        'Max(GeMM(c["m"], q.T), dim="head") - 5',
        'Exp(Max(GeMM(c["m"], q.T), dim="head"))',
        'Softmax(Max(GeMM(c["m"], q.T), dim="head"))',
        'Tanh(Max(GeMM(c["m"], q.T), dim="head") * 0.01)',
    ],
)
def test_steps_that_keep_the_order_go_before_topk(tmp_path, text):
    result, rewrites = rewritten(tmp_path, rewrite.order_only, f"return topK({text})", MEAN, scores=False)
    assert rewrites
    assert not {"Exp", "Softmax", "Tanh", "Add", "Sub", "Div"} & set(ops(result))


@pytest.mark.parametrize(
    "text, policy",
    [
        ('topK(Max(GeMM(c["m"], q.T), dim="head") * -0.25)', {}),
        ('topK(Max(GeMM(c["m"], q.T), dim="head") * 0.0)', {}),
        ('topP(Exp(Max(GeMM(c["m"], q.T), dim="head")) * 0.25, 0.5)', {}),
        ('Threshold(Max(GeMM(c["m"], q.T), dim="head") * 0.25, 0.5)', {}),
        ('topK(Max(GeMM(c["m"], q.T), dim="head") * 0.25, mode="stochastic")', {}),
        ('topK(Exp(Max(GeMM(c["m"], q.T), dim="head")))', {"share_heads": "sum"}),
        ('topK(Softmax(Max(GeMM(c["m"], q.T), dim="head")))', {"share_heads": "max"}),
        ('topK(Exp(Log(Max(GeMM(c["m"], q.T), dim="head"))))', {}),
        ('topK(Exp(Where(Positions().index > 5, Max(GeMM(c["m"], q.T), dim="head"), float("-inf"))))', {}),
        ('topK(Max(GeMM(c["m"], q.T), dim="head") + float("inf"))', {}),
        ('topK(Log(Max(GeMM(c["m"], q.T), dim="head")))', {}),
    ],
)
def test_steps_that_decide_something_stay(tmp_path, text, policy):
    _, rewrites = rewritten(tmp_path, rewrite.order_only, f"return {text}", MEAN, **policy)
    assert not rewrites


def test_a_scaled_score_that_a_state_keeps_is_still_scaled(tmp_path):
    body = 's = Max(GeMM(c["m"], q.T), dim="head") * 0.25\nc["s"] = s\nreturn topK(s)'
    _, rewrites = rewritten(tmp_path, rewrite.order_only, body, MEAN)
    assert not rewrites


def test_a_factor_is_fine_where_heads_are_added(tmp_path):
    body = 'return topK(Max(GeMM(c["m"], q.T), dim="head") * 0.25)'
    _, rewrites = rewritten(tmp_path, rewrite.order_only, body, MEAN, scores=False, share_heads="sum")
    assert rewrites


@pytest.mark.parametrize("text", ["s * 0.3", "s / 3", "s + 2.5", "2.5 + s", "s - 0.1"])
@pytest.mark.parametrize("extreme", ["Max", "Min"])
def test_a_constant_comes_out_of_an_extreme_bit_for_bit(tmp_path, text, extreme):
    body = f's = GeMM(c["m"], q.T)\nreturn topK({extreme}({text}, dim="head"))'
    program = flow(tmp_path, body, MEAN)
    result, rewrites = only(program, rewrite.scale_after_extreme)
    assert rewrites
    one, two = (evaluate(each, dtype=torch.float32) for each in (program, result))
    assert torch.equal(one.scores, two.scores)


@pytest.mark.parametrize("text", ["s * -0.3", "0.5 - s", "s * True", "s + float('nan')"])
def test_a_constant_that_turns_the_order_stays_in(tmp_path, text):
    _, rewrites = rewritten(
        tmp_path,
        rewrite.scale_after_extreme,
        f's = GeMM(c["m"], q.T)\nreturn topK(Max({text}, dim="head"))',
        MEAN,
    )
    assert not rewrites


def test_the_query_is_scaled_in_place_of_many_scores(tmp_path):
    body = """
    p = Softmax(GeMM(c["k"], q.T) * 0.353, dim=("block", "token"))
    return topK(Sum(p, dim=("token", "head")))
    """
    result, rewrites = rewritten(tmp_path, rewrite.scale_small_operand, body)
    assert rewrites
    assert not any(node.op == "Mul" and node.type.axis("block") for node in result.indexer.nodes)


def test_factors_merge(tmp_path):
    body = 'return topP(Exp(Max(GeMM(c["m"], q.T), dim="head") * 0.5 / 3 * 0.7), 0.6)'
    result, rewrites = rewritten(tmp_path, rewrite.merge_factors, body, MEAN)
    assert rewrites and ops(result).count("Mul") == 1 and "Div" not in ops(result)


def test_what_is_derived_from_logarithms_or_states_is_not_called_finite(tmp_path):
    body = 'c["a"] = c.get("a", 0.0) + Max(Log(GeMM(c["m"], q.T)), dim="head")\nreturn topK(c["a"])'
    program = flow(tmp_path, body, MEAN)
    nodes = program.indexer.nodes
    unsafe = {node.op for number, node in enumerate(nodes) if not finite(program, program.indexer, number)}
    assert unsafe == {"State", "Log", "Max", "Add", "topK"}


def test_rewrites_print_where_and_what(tmp_path):
    program = flow(tmp_path, 'return topK(Mean(GeMM(c["m"], q.T), dim="head"))', MEAN)
    _, rewrites = optimise(program)
    (text,) = [str(each) for each in rewrites if each.pass_name == "algebra"]
    assert text == (
        "algebra (line 9): Mean((c['m'] @ q.T), dim='head') -> (c['m'] @ Mean(q, dim='head')); "
        "saves 19 operations a block for 24 more operations a row"
    )


def test_an_empty_block_axis_stays_empty(tmp_path):
    body = 'return topK(Max(Sum(Maximum(q * c["hi"], q * c["lo"]), dim="dim"), dim="head"))'
    program = flow(tmp_path, body, BOX)
    assert evaluate(optimise(program)[0], blocks=0).chosen == evaluate(program, blocks=0).chosen == []
