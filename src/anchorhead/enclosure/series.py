"""Arithmetic of truncated Taylor series with ball coefficients, valid at every point of a ball at once.

A series knows how many of its coefficients mean something (`length`); coefficients that are exactly zero at the end
are not stored. Length 2 may also mean a function with kinks in the ball: then the second coefficient encloses all
slopes (f(v) - f(m)) / (v - m). Sums, products and compositions of such enclosures enclose the slopes of the result:
for a product, f g(v) - f g(m) = f(v) (g(v) - g(m)) + g(m) (f(v) - f(m)). So one rule serves both, and the length of a
result is the smallest of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flint import arb, arb_series

SHORT = 3


class Series(NamedTuple):
    """Coefficients c_0 .. ; those from len(coefficients) up to length are zero."""

    coefficients: Sequence[arb]
    length: int

    def padded(self) -> list[arb]:
        return [*self.coefficients, *([arb(0)] * (self.length - len(self.coefficients)))]


def add(left: Series, right: Series) -> Series:
    length = min(left.length, right.length)
    a, b = left.coefficients, right.coefficients
    if len(a) < len(b):
        a, b = b, a
    shared = min(len(b), length)
    return Series([*(a[i] + b[i] for i in range(shared)), *a[shared:length]], length)


def negate(series: Series) -> Series:
    return Series([-c for c in series.coefficients], series.length)


def multiply(left: Series, right: Series) -> Series:
    length = min(left.length, right.length)
    a, b = left.coefficients[:length], right.coefficients[:length]
    if len(a) > len(b):
        a, b = b, a
    if len(a) == 1:
        return Series([a[0] * c for c in b], length)
    if len(a) == 2 or len(b) <= SHORT:
        return Series(_by_hand(a, b, length), length)
    product = arb_series(list(a), prec=length) * arb_series(list(b), prec=length)
    return Series([product[i] for i in range(min(length, len(a) + len(b) - 1))], length)


def _by_hand(a: Sequence[arb], b: Sequence[arb], length: int) -> list[arb]:
    result = [a[0] * c for c in b]
    for i in range(1, len(a)):
        for j, c in enumerate(b):
            if i + j >= length:
                break
            if i + j < len(result):
                result[i + j] = result[i + j] + a[i] * c
            else:
                result.append(a[i] * c)
    return result


def divide(above: Sequence[arb], below: Sequence[arb]) -> list[arb]:
    """The quotient's coefficients, as many as both have: q_j b_0 = a_j - sum over i < j of q_i b_(j-i)."""
    result: list[arb] = []
    for j in range(min(len(above), len(below))):
        rest = above[j]
        for i, q in enumerate(result):
            rest = rest - q * below[j - i]
        result.append(rest / below[0])
    return result


def compose(outer: Sequence[arb], inner: Series) -> Series:
    """The function with Taylor coefficients `outer` at the ball inner_0, of the inner series."""
    length = min(len(outer), inner.length)
    steps = list(inner.coefficients[1:length])
    while steps and steps[-1].is_zero():
        steps.pop()
    if not steps:
        return Series(outer[:1], length)
    if len(steps) == 1:
        return Series(_rescaled(outer[:length], steps[0]), length)
    composed = arb_series(list(outer[:length]), prec=length)(arb_series([arb(0), *steps], prec=length))
    return Series([composed[i] for i in range(length)], length)


def _rescaled(outer: Sequence[arb], factor: arb) -> Sequence[arb]:
    """Coefficients of f(v + factor t)."""
    if factor == 1:
        return outer
    result, power = [outer[0]], factor
    for c in outer[1:]:
        result.append(c * power)
        power = power * factor
    return result
