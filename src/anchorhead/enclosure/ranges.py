"""Enclosures of the primitives' ranges over a ball, tight for wide balls too.

Arb evaluates a function on a ball by its value at the middle and a bound of its slope, which is as good as possible
on small balls and hopeless on wide ones: exp([-60, 60]) contains negative numbers and tanh of it is not a number. So a
wide ball goes through its end points, where the function is monotone, and the result is cut to the known range.

A ball's radius has 30 bits, so a box that ends at 0 hangs over it a little, and sqrt would not be defined there. A
sliver of at most 2**-20 of the ball is therefore left out where a function ends at a finite value (sqrt at 0, asin at
1): the enclosure then speaks of the points of the ball where the function is defined. Any larger overhang, and a ball
that lies outside, gives nan.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction

from flint import arb, fmpq

NAN = arb("nan")
ZERO, ONE = arb(0), arb(1)
UNIT = arb(0.5, 0.5)
SIGNED_UNIT = arb(0, 1)
SLIVER = arb(2) ** -20
WIDE = arb(0.03125)


def exact(number: int | Fraction | arb) -> arb:
    """The ball of a rational number at the working precision; exact where it is an integer or dyadic and fits."""
    if isinstance(number, arb):
        return number
    return arb(number) if isinstance(number, int) else arb(fmpq(number.numerator, number.denominator))


def is_wide(u: arb) -> bool:
    return bool(u.rad() > WIDE)


def hull(low: arb, high: arb) -> arb:
    """The smallest ball around two balls."""
    return low.union(high)


def within(u: arb, limits: arb) -> arb:
    """The part of u inside the limits, of which the true range is known to be a part."""
    if u.is_finite():
        return u.intersection(limits)
    return limits


def rising(function: Callable[[arb], arb], u: arb) -> arb:
    """The range of a monotone function, through the end points when the ball is wide."""
    if not is_wide(u):
        return function(u)
    return hull(function(u.lower()), function(u.upper()))


def exp(u: arb) -> arb:
    return rising(arb.exp, u)


def expm1(u: arb) -> arb:
    return rising(arb.expm1, u)


def log(u: arb) -> arb:
    if not u > 0:
        return NAN
    return u.log() if u.rel_accuracy_bits() > 6 else hull(u.lower().log(), u.upper().log())


def log1p(u: arb) -> arb:
    shifted = u + 1
    if not shifted > 0:
        return NAN
    return u.log1p() if shifted.rel_accuracy_bits() > 6 else hull(u.lower().log1p(), u.upper().log1p())


def _sigmoid(u: arb) -> arb:
    if u > 0:
        return 1 / (1 + (-u).exp())
    small = u.exp()
    return small / (1 + small)


def sigmoid(u: arb) -> arb:
    return within(rising(_sigmoid, u), UNIT) if is_wide(u) else _sigmoid(u)


def _softplus(u: arb) -> arb:
    return u + (-u).exp().log1p() if u > 0 else u.exp().log1p()


def softplus(u: arb) -> arb:
    return rising(_softplus, u)


def tanh(u: arb) -> arb:
    return within(rising(arb.tanh, u), SIGNED_UNIT) if is_wide(u) else u.tanh()


def erf(u: arb) -> arb:
    return within(rising(arb.erf, u), SIGNED_UNIT) if is_wide(u) else u.erf()


def erfc(u: arb) -> arb:
    return within(rising(arb.erfc, u), arb(1, 1)) if is_wide(u) else u.erfc()


def sin(u: arb) -> arb:
    return within(u.sin(), SIGNED_UNIT)


def cos(u: arb) -> arb:
    return within(u.cos(), SIGNED_UNIT)


def sinh(u: arb) -> arb:
    return rising(arb.sinh, u)


def cosh(u: arb) -> arb:
    if not is_wide(u):
        return u.cosh()
    low, high = u.abs_lower(), u.abs_upper()
    return hull(low.cosh(), high.cosh())


def atan(u: arb) -> arb:
    return rising(arb.atan, u)


def asinh(u: arb) -> arb:
    return rising(arb.asinh, u)


def _ended(function: Callable[[arb], arb], low: arb | None, high: arb | None) -> Callable[[arb], arb]:
    """The range of a monotone function that is defined from low to high, both ends included."""

    def over(u: arb) -> arb:
        left, right = u.lower(), u.upper()
        sliver = (right - left) * SLIVER
        if low is not None and not left > low:
            if not (left >= low - sliver and right >= low):
                return NAN
            left = low
        if high is not None and not right < high:
            if not (right <= high + sliver and left <= high):
                return NAN
            right = high
        return hull(function(left), function(right))

    return over


asin = _ended(arb.asin, arb(-1), arb(1))
acos = _ended(arb.acos, arb(-1), arb(1))
acosh = _ended(arb.acosh, arb(1), None)


def atanh(u: arb) -> arb:
    if not (u > -1 and u < 1):
        return NAN
    return rising(arb.atanh, u)


def square(u: arb) -> arb:
    return power(u, 2)


def _whole_power(u: arb, exponent: int) -> arb:
    """A power of a ball that does not hold 0, or of 0 itself; by multiplication while that is short."""
    if u.is_zero():
        return ZERO
    if exponent == 2:
        return u * u
    if exponent > 64:
        size = abs(u) ** exponent
        return -size if u < 0 and exponent % 2 else size
    result, base = ONE, u
    while exponent:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return result


def power(u: arb, exponent: int | Fraction | arb) -> arb:
    """u**exponent: integers for every u (not 0 when negative), other rationals and balls for u >= 0."""
    if isinstance(exponent, arb) or (isinstance(exponent, Fraction) and exponent.denominator != 1):
        return _real_power(u, exponent)
    whole = int(exponent)
    if whole == 0:
        return ONE
    if whole < 0:
        if not (u > 0 or u < 0):
            return NAN
        if u.rel_accuracy_bits() > 6:
            return 1 / _whole_power(u, -whole)
        return hull(1 / _whole_power(u.lower(), -whole), 1 / _whole_power(u.upper(), -whole))
    if u.rel_accuracy_bits() > 6:
        return _whole_power(u, whole)
    if whole % 2:
        return hull(_whole_power(u.lower(), whole), _whole_power(u.upper(), whole))
    return hull(_whole_power(u.abs_lower(), whole), _whole_power(u.abs_upper(), whole))


def _real_power(u: arb, exponent: Fraction | arb) -> arb:
    half = isinstance(exponent, Fraction) and exponent == Fraction(1, 2)
    if u > 0:
        if u.rel_accuracy_bits() > 6:
            return u.sqrt() if half else u ** exact(exponent)
        ends = u.lower(), u.upper()
    elif exponent > 0 and touches_zero(u):
        ends = ZERO, u.upper()
    else:
        return NAN
    low, high = (ZERO if end.is_zero() else end.sqrt() if half else end ** exact(exponent) for end in ends)
    return hull(low, high)


def touches_zero(u: arb) -> bool:
    """Whether u is a ball of numbers >= 0 but for a sliver."""
    high = u.upper()
    return bool(high >= 0 and u.lower() >= -high * SLIVER)


def product(u: arb, v: arb) -> arb:
    """The range of a product of two independent numbers, from those of their ends: that of [0, 1] twice is [0, 1] and
    the product of the balls reaches below 0."""
    low, *others = (a * b for a in (u.lower(), u.upper()) for b in (v.lower(), v.upper()))
    return functools.reduce(hull, others, low)


def absolute(u: arb) -> arb:
    if u > 0:
        return u
    if u < 0:
        return -u
    return hull(ZERO, u.abs_upper())


def largest(u: arb, v: arb) -> arb:
    if u >= v:
        return u
    return v if v >= u else u.max(v)


def smallest(u: arb, v: arb) -> arb:
    if u <= v:
        return u
    return v if v <= u else u.min(v)


RANGES: dict[str, Callable[[arb], arb]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "sin": sin,
    "cos": cos,
    "tan": arb.tan,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "erf": erf,
    "erfc": erfc,
    "sigmoid": sigmoid,
    "softplus": softplus,
    "abs": absolute,
}
