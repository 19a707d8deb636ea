"""Elementwise operators on Python numbers: total, with the values that IEEE arithmetic gives at the edges."""

from __future__ import annotations

import math

INF, NAN = math.inf, math.nan


def exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return INF


def log(x: float) -> float:
    if x == 0:
        return -INF
    return math.log(x) if x > 0 else NAN


def sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0 else NAN


def rsqrt(x: float) -> float:
    if x == 0:
        return math.copysign(INF, x)
    return 1.0 / math.sqrt(x) if x > 0 else NAN


def sigmoid(x: float) -> float:
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    return exp(x) / (1.0 + exp(x))


def silu(x: float) -> float:
    return x * sigmoid(x)


def relu(x: float) -> float:
    return x if math.isnan(x) else max(x, 0)


def maximum(a: float, b: float) -> float:
    return NAN if math.isnan(a) or math.isnan(b) else max(a, b)


def minimum(a: float, b: float) -> float:
    return NAN if math.isnan(a) or math.isnan(b) else min(a, b)


def divide(a: float, b: float) -> float:
    if b != 0:
        return a / b
    return NAN if a == 0 or math.isnan(a) else math.copysign(INF, a) * math.copysign(1.0, b)


def integers(a: float, b: float) -> bool:
    return isinstance(a, int) and isinstance(b, int)


def floor_divide(a: float, b: float) -> float:
    if b == 0:
        return 0 if integers(a, b) else divide(a, b)
    if math.isinf(a):
        return NAN
    return a // b


def remainder(a: float, b: float) -> float:
    if b == 0:
        return 0 if integers(a, b) else NAN
    return NAN if math.isinf(a) else a % b


def power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return -INF if a < 0 and b % 2 == 1 else INF
    except ValueError:
        if a != 0:
            return NAN
        return math.copysign(INF, a) if b % 2 == 1 else INF
