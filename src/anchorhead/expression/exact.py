"""Exact real numbers: int, Fraction, float (the dyadic number that it is), or a closed formula such as sqrt(2)/pi.

The coefficients of a target are exact. A float stays a float while nothing is done to it; arithmetic is done in
fractions, so that merging two affine maps is an identity and not an approximation.
"""

from __future__ import annotations

import struct
from fractions import Fraction

from flint import arb, fmpq

from anchorhead.errors import PrecisionError
from anchorhead.expression.balls import enclose
from anchorhead.expression.graph import Node, constant, number_of

Number = int | Fraction | float | Node


def simplified(number: Number) -> Number:
    """A constant node as the number it holds."""
    return number_of(number) if isinstance(number, Node) and number.op == "constant" else number


def plus(a: Number, b: Number) -> Number:
    if a == 0:
        return b
    if b == 0:
        return a
    if isinstance(a, Node) or isinstance(b, Node):
        return Node("add", (as_node(a), as_node(b)))
    return Fraction(a) + Fraction(b)


def times(a: Number, b: Number) -> Number:
    if a == 0 or b == 0:
        return 0
    if a == 1:
        return b
    if b == 1:
        return a
    if isinstance(a, Node) or isinstance(b, Node):
        return Node("mul", (as_node(a), as_node(b)))
    return Fraction(a) * Fraction(b)


def over(a: Number, b: Number) -> Number:
    """a / b; b is not zero."""
    if isinstance(a, Node) or isinstance(b, Node):
        return a if b == 1 else Node("div", (as_node(a), as_node(b)))
    return Fraction(a) / Fraction(b)


def as_node(number: Number) -> Node:
    return number if isinstance(number, Node) else constant(number)


def as_ball(number: Number) -> arb:
    """The number at the working precision."""
    if isinstance(number, Node):
        return enclose(number, {})
    if isinstance(number, Fraction):
        return arb(fmpq(number.numerator, number.denominator))
    return arb(number)


def as_float(number: Number) -> float:
    """A float next to the number; the nearest one, but for closed formulas."""
    if isinstance(number, Node):
        return float(enclose(number, {}).mid())
    return float(number)


def stored(number: Number, dtype: str) -> float:
    """The number as a network of that dtype stores it."""
    try:
        value = as_float(number)
        return value if dtype == "float64" else float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        raise PrecisionError(
            f"A coefficient of the target is too large for {dtype}; rescale the variables, or use a wider dtype."
        ) from None
