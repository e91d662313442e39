"""Exact real numbers: int, Fraction, float (the dyadic number that it is), or a closed formula such as sqrt(2)/pi.

The coefficients of a target are exact. A float stays a float while nothing is done to it; arithmetic is done in
fractions, so that merging two affine maps is an identity and not an approximation.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from flint import arb, ctx, fmpq

from anchorhead.enclosure.balls import MOST_BITS, enclose
from anchorhead.errors import PrecisionError, SingularityError
from anchorhead.expression.graph import Node, constant, fold, is_short, number_of, rational_part

Number = int | Fraction | float | Node

DIGITS = 128
"""Bits to which a closed formula is known, however much cancels in it."""


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
    return _kept(Fraction(a) + Fraction(b), "add", a, b)


def times(a: Number, b: Number) -> Number:
    if a == 0 or b == 0:
        return 0
    if a == 1:
        return b
    if b == 1:
        return a
    if isinstance(a, Node) or isinstance(b, Node):
        return Node("mul", (as_node(a), as_node(b)))
    return _kept(Fraction(a) * Fraction(b), "mul", a, b)


def over(a: Number, b: Number) -> Number:
    """a / b; b is not zero."""
    if isinstance(a, Node) or isinstance(b, Node):
        return a if b == 1 else Node("div", (as_node(a), as_node(b)))
    return _kept(Fraction(a) / Fraction(b), "div", a, b)


def _kept(exact: Fraction, op: str, a: Number, b: Number) -> Number:
    """The exact number, or where it is too long the formula that makes it."""
    return exact if is_short(exact, MOST_BITS) else Node(op, (as_node(a), as_node(b)))


def as_node(number: Number) -> Node:
    return number if isinstance(number, Node) else constant(number)


def as_ball(number: Number) -> arb:
    """The number to at least the working precision, and to DIGITS bits or more."""
    if isinstance(number, Node):
        return _enclosed(number, max(ctx.prec, DIGITS))
    if isinstance(number, Fraction):
        return arb(fmpq(number.numerator, number.denominator))
    return arb(number)


@lru_cache(maxsize=10_000)
def _enclosed(formula: Node, bits: int) -> arb:
    """A closed formula, whose terms may cancel, with `bits` good bits; what MOST_BITS cannot tell from 0 stays a ball
    around 0, tiny and honest."""
    before, found = ctx.prec, arb("nan")
    try:
        working = 2 * bits
        while working <= MOST_BITS:
            ctx.prec = working
            found = enclose(formula, {})
            if found.is_finite() and found.rel_accuracy_bits() >= bits:
                break
            working *= 2
    finally:
        ctx.prec = before
    if not found.is_finite():
        raise SingularityError(f"The constant {formula} in the target is not a finite number; correct the formula.")
    return found


def exact_value(node: Node) -> Fraction | None:
    """The number that a closed formula is, if every step to it is a rational number: exp(0) - 1 is 0, and exp(1) is
    none. A ball without a radius holds one number, and a ball holds what it encloses."""

    def rule(part: Node, args: list[Fraction | None]) -> Fraction | None:
        plain, given = rational_part(part, args), [constant(value) for value in args if value is not None]
        if plain is not None or not args or len(given) < len(args):
            return plain
        ball = as_ball(Node(part.op, given, part.value))
        if not ball.is_exact() or abs(ball) > 2**DIGITS:
            return None
        mantissa, exponent = ball.mid().man_exp()
        return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)

    try:
        return fold(node, rule)
    except SingularityError:  # the formula has no value
        return None


def as_float(number: Number) -> float:
    """The float nearest to the number; PrecisionError for what is too large for any."""
    try:
        value = float(_enclosed(number, DIGITS).mid()) if isinstance(number, Node) else float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise PrecisionError("A constant of the target is too large for float64; rescale the target or its variables.")
    return value


def sign_of(number: Number) -> int | None:
    """-1, 0 or 1, where that is certain; None for a closed formula that cannot be told from zero."""
    if not isinstance(number, Node):
        return (number > 0) - (number < 0)
    found = as_ball(number)
    return 1 if found > 0 else -1 if found < 0 else 0 if found == 0 else None


def largest(numbers: Sequence[Number]) -> Number:
    """The largest of some numbers, as a closed formula where one of them is."""
    plain = [number for number in numbers if not isinstance(number, Node)]
    if len(numbers) == 1 or len(plain) == len(numbers):
        return numbers[0] if len(numbers) == 1 else max(plain)
    return Node("max", [as_node(number) for number in numbers])


def all_stored(numbers: Sequence[Number], dtype: str) -> list[float]:
    """The numbers as a network of that dtype stores them; floats all at once."""
    floats = [number for number in numbers if isinstance(number, float)]
    if len(floats) < len(numbers) or not all(map(math.isfinite, floats)):
        return [stored(number, dtype) for number in numbers]
    if dtype == "float64":
        return floats
    form = f"{len(floats)}f"
    try:
        return list(struct.unpack(form, struct.pack(form, *floats)))
    except OverflowError:
        return [stored(number, dtype) for number in numbers]


def stored(number: Number, dtype: str) -> float:
    """The number as a network of that dtype stores it."""
    try:
        value = as_float(number)
        return value if dtype == "float64" else float(struct.unpack("f", struct.pack("f", value))[0])
    except (OverflowError, PrecisionError):
        raise PrecisionError(
            f"A coefficient of the target is too large for {dtype}; rescale the variables, or use a wider dtype."
        ) from None
