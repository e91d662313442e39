"""The precision of proofs, intervals as balls, and balls as floats that are certainly not below or above them."""

from __future__ import annotations

import math

from flint import arb, ctx

PRECISION = 106
"""Bits of the balls: twice float64, so that what cancels between target and head still has digits."""


class precision:
    """Sets the balls' precision for a block, and restores it."""

    def __init__(self, bits: int = PRECISION) -> None:
        self.bits = bits

    def __enter__(self) -> None:
        self.before, ctx.prec = ctx.prec, self.bits

    def __exit__(self, *_: object) -> None:
        ctx.prec = self.before


def ball(low: float, high: float) -> arb:
    """The ball that holds [low, high]."""
    return arb(low).union(arb(high))


def upper(value: arb) -> float:
    """A float that is certainly not below the ball; infinity for what is not finite."""
    if not value.is_finite():
        return math.inf
    return math.nextafter(float(value.upper()), math.inf)


def below(value: arb) -> float:
    """A float that is not above the ball; the number itself where it is one."""
    found = float(value.lower())
    return found if value == found else math.nextafter(found, -math.inf)


def above(value: arb) -> float:
    """A float that is not below the ball; the number itself where it is one."""
    found = float(value.upper())
    return found if value == found else math.nextafter(found, math.inf)
