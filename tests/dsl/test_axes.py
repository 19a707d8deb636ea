"""How operands align, what dim= means, and what every operator does to axes."""

import re

import pytest

from tests.dsl.flows import cached, last_node, refused, typed

MEAN = 'c["mean"] = Mean(c["k"])'
KV = 'k, v = c["k"], c["v"]'


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("q * k", "(1, block, token=4, head=4, dim=8) fp32"),  # block, token, head, others, dim
        ("k * q", "(1, block, token=4, head=4, dim=8) fp32"),
        ("k.T * k", "(1, block, dim=8, token=4) fp32"),  # one operand has all axes: its order
        ('k * Sum(k, dim="dim")', "(1, block, token=4, dim=8) fp32"),
        ('Rename(q, head="r") * k', "(1, block, token=4, r=4, dim=8) fp32"),
        ('Rename(q, dim="a") * Rename(q, head="b", dim="c")', "(1, head=4, a=8, b=4, c=8) fp32"),
        ("k * 2", "(1, block, token=4, dim=8) fp32"),
        ("2 - k", "(1, block, token=4, dim=8) fp32"),
        ("Positions().index + 1", "(1, block) int32"),
        ("Positions().index / 2", "(1, block) fp32"),
        ("Positions().index // 2", "(1, block) int32"),
        ("Positions().index * 0.5", "(1, block) fp32"),
        ("(q > 0) + (q > 1)", "(1, head=4, dim=8) int32"),  # two booleans count as int32
        ("(q > 0) & (q > 1)", "(1, head=4, dim=8) bool"),
        ("-(q > 0)", "(1, head=4, dim=8) int32"),
        ("Exp(Positions().index)", "(1, block) fp32"),
        ("Where(q > 0, 1, 2)", "(1, head=4, dim=8) int32"),
        ("Where(q > 0, True, q < 1)", "(1, head=4, dim=8) bool"),
        ("Maximum(Positions().index, 2)", "(1, block) int32"),
        ('Cast(q, "int8") * 1', "(1, head=4, dim=8) fp32"),
    ],
)
def test_elementwise_operands_align_by_name(expression, expected):
    assert typed(expression, before=KV) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("GeMM(k, q.T)", "(1, block, token=4, head=4) fp32"),
        ("q @ k.T", "(1, block, head=4, token=4) fp32"),
        ('GeMM(k, Mean(q, dim="head"))', "(1, block, token=4) fp32"),  # matrix times vector
        ('GeMM(Mean(q, dim="head"), q.T)', "(1, head=4) fp32"),  # vector times matrix
        ("GeMM(q[:, 0], q[:, 1])", "(1) fp32"),  # vector times vector
        ('GeMM(Rename(k, token="a"), Rename(k, token="b").T)', "(1, block, a=4, b=4) fp32"),
        ('GeMM(Max(k, dim="token").T, Max(k, dim="token") * 1)', None),
        ('GeMM(Sum(k, dim="token").T, Sum(k, dim=("token", "dim")))', "(1, dim=8) fp32"),  # contracts block
    ],
)
def test_gemm_is_matmul_after_the_leading_one(expression, expected):
    if expected is None:
        assert refused(expression, before=KV) == "repeated-axis"
    else:
        assert typed(expression, before=KV) == expected


@pytest.mark.parametrize(
    ("expression", "slug"),
    [
        ("GeMM(k, q)", "contracted-size"),
        ('GeMM(k, Parameter("w", "head=8 r=2", init="ones"))', "contracted-name"),
        ('GeMM(q, Parameter("w", "r=8 s=2", init="ones"))', None),  # free names need only agree in size
        ('GeMM(k[:, :, 0], k[:, :, 0].T)', "two-blocks"),
        ('GeMM(q.T, q)', "repeated-axis"),
        ('Gather(k, First(2)) + k', "restricted-block"),
        ('Gather(k, First(2)) + Gather(k, Last(2))', "restricted-block"),
        ('Split(k, "token", block=2, token=2)', "rename-block"),
        ('Merge(k, "token", "dim", to="block")', "rename-block"),
        ('Merge(k, "block", "dim", to="a")', "slice-block"),
        ('Split(k, "block", a=2, b=2)', "slice-block"),
        ('Concat(k, k, dim="block")', "slice-block"),
        ('Concat(k, k, dim=("token", "dim"))', "one-axis"),
        ('Sum(k, dim=())', "bad-dim"),
        ('Sum(k, dim=(1, "block"))', "repeated-dim"),
        ('Sum(k, dim=True)', "bad-dim"),
        ('Sum(k, dim=4)', "dim-range"),
        ('Sum(k, dim=-4)', "request-axis"),
        ('Sum(k, dim=-5)', "dim-range"),
        ('k[1]', "index-request"),
        ('k[:, 0]', "slice-block"),
        ('k[:, :, 0, 0, 0]', "index-rank"),
        ('k[:, :, -5]', "index-range"),
        ('Rename(q, head="dim")', "repeated-axis"),
        ('Softmax(q)', "no-axis"),
        ('topK(q, dim="dim", k=9)', "k-required"),
        ('topK(q, dim="dim", k="8")', "k-required"),
        ('First(-1)', "bad-size"),
        ('Threshold(Max(Max(k)), float("nan"))', "bad-number"),
        ('MaxPool1d(Max(Max(k)), 0)', "bad-size"),
        ('Conv1d(Max(Max(k)), [])', "conv-weights"),
    ],
)  # fmt: skip
def test_what_the_rules_refuse(expression, slug):
    if slug is None:
        assert typed(expression, before=KV) == "(1, head=4, s=2) fp32"
    else:
        assert refused(expression, before=KV) == slug


@pytest.mark.parametrize("dim", ['"head"', "2", "-2", '("head",)', "(-2,)", "[2]"])
def test_dim_is_a_name_a_position_or_a_tuple(dim):
    assert typed(f"Max(c['mean'] * q, dim={dim})", MEAN) == "(1, block, dim=8) fp32"


@pytest.mark.parametrize("dim", ['("head", "dim")', "(2, 3)", "(-1, -2)", '(2, "dim")'])
def test_dim_may_name_several_axes(dim):
    assert typed(f"Sum(c['mean'] * q, dim={dim})", MEAN) == "(1, block) fp32"


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
def test_reductions_take_token_in_the_cache_and_the_last_axis_elsewhere(op):
    assert cached(f'{op}(c["k"])') == "(1, dim=8) fp32"
    assert cached(f'{op}({op}(c["k"]))') == "(1) fp32"  # without token: the last axis
    assert typed(f'{op}(c["k"])') == "(1, block, token=4) fp32"


def test_other_defaults_of_dim():
    assert typed("L2Norm(q)") == "(1, head=4) fp32"
    assert typed("Normalize(q)") == "(1, head=4, dim=8) fp32"
    for op in ("Softmax", "CumSum"):
        assert dict(last_node(f'{op}(Max(c["k"]))').attrs)["dim"] == ("block",)
    assert typed('ArgMax(Max(c["k"]))') == "(1, token=4) int32"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('Split(k, "token", a=2, token=2)', "(1, block, a=2, token=2, dim=8) fp32"),
        ('Split(k, -1, a=2, dim=4)', "(1, block, token=4, a=2, dim=4) fp32"),
        ('Split(k, "token", x=2, b=2)', "(1, block, x=2, b=2, dim=8) fp32"),
        ('Merge(k, "token", "dim", to="f")', "(1, block, f=32) fp32"),
        ('Merge(k, "dim", "token", to="f")', "(1, block, f=32) fp32"),
        ('Rename(k, token="t", dim="token")', "(1, block, t=4, token=8) fp32"),
        ('Rename(q, head="axes")', "(1, axes=4, dim=8) fp32"),
        ('Rename(q, head="inf", dim="nan")', "(1, inf=4, nan=8) fp32"),
        ('Split(q, "head", axes=2, true=2)', "(1, axes=2, true=2, dim=8) fp32"),
        ('Transpose(k, "dim", "block", "token")', "(1, dim=8, block, token=4) fp32"),
        ('Transpose(k)', "(1, block, dim=8, token=4) fp32"),
        ('Concat(q, q[:, :1], dim="head")', "(1, head=5, dim=8) fp32"),
        ('Concat(k, q, dim="dim")', "(1, block, token=4, dim=16, head=4) fp32"),
        ('k[:, :, 1:3]', "(1, block, token=2, dim=8) fp32"),
        ('k[:, :, ::3, -1]', "(1, block, token=2) fp32"),
        ('k[..., 0]', "(1, block, token=4) fp32"),
        ('q[:, 0]', "(1, dim=8) fp32"),
        ('Gather(k, topK(q, dim="dim", k=3))', "(1, block, token=4, head=4, dim=3) fp32"),
        ('Gather(k, ArgMax(q, dim="dim"), dim="dim")', "(1, block, token=4, head=4) fp32"),
        ('Gather(k, First(2))', "(1, block[%1], token=4, dim=8) fp32"),
        ('Scatter(Gather(k, First(2)))', "(1, block, token=4, dim=8) fp32"),
        ('topK(q, dim="dim", k=3)', "(1, head=4, dim=8) set(dim, 3)"),
        ('Union(topK(Max(Max(k))), First(1)) & True', "(1, block) bool"),
        ('topK(q, dim="dim", k=3) & (q > 0)', "(1, head=4, dim=8) bool"),  # a set as its indicator
        ('~First(2)', "(1, block) bool"),
        ('First(2) * 1.0', "(1, block) fp32"),
    ],
)  # fmt: skip
def test_shapes_of_rearrangements_and_sets(expression, expected):
    assert re.sub(r"%\d+", "%1", typed(expression, before=KV)) == expected


def test_an_unsliced_subscript_records_nothing():
    assert last_node("Exp(q[:, :, :])").inputs == (0,)


def test_shape_shows_sizes_with_the_leading_one():
    assert typed('q * c["k"].shape[2] * c["k"].shape[-1] * q.shape[0]') == "(1, head=4, dim=8) fp32"
    assert refused('q * c["k"].shape[1]') == "block-count"
