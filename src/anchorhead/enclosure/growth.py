"""Functions that grow exponentially far out on one side, of which only a lower bound is known.

For y = sign*x >= s >= 1 such a function f has one sign, and |f| >= scale * exp(rate*y) with rate > 0. That is enough
for what divides by it, and these are the rules:

    exp(u)         for u >= c_0 + c_1 t with c_1 > 0, y = s + t: at least exp(c_0 - c_1 s) exp(c_1 y); expm1(u) is that
                   less 1, cosh(u) is at least half of it, sinh(u) half of it less 1, where u >= 0, and cosh is even,
                   sinh odd
    f + g          of one sign: at least either of the two; that of the larger rate is kept
    f + p + r      |p + r| <= P y**d with P = sum of |p_k| s**(k-d) + sup|r| s**-d, and y**d exp(-rate*y) P <= q for all
                   y >= s (`Remainder.sup`): at least (scale - q) exp(rate*y), if q < scale
    f * g          scales multiply, and rates add; f * (p + r) with |p + r| >= m > 0 has m * scale
    f**a           scale**a and a*rate for a > 0; for a < 0 it is a remainder, at most scale**a exp(a*rate*y), with
                   nothing beside it
    F(f)           F of something that rises (falls) at least like a line: exp(rate*y) >= exp(rate*s) (1 + rate*t)
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from flint import arb, fmpq

from anchorhead.enclosure.asymptotes import NOTHING, Asymptote, Remainder

GROWING = {True: ("exp", "expm1", "cosh", "sinh"), False: ("cosh", "sinh")}
"""Functions that grow exponentially where their argument rises, or falls, like a line."""


class Growth(NamedTuple):
    """direction * f >= scale * exp(rate*y), with scale and rate > 0, for y >= start on the side `sign`."""

    scale: arb
    rate: arb
    direction: int
    sign: int
    start: arb

    def negated(self) -> Growth:
        return self._replace(direction=-self.direction)

    def plus(self, other: Growth | Asymptote) -> Growth | None:
        if isinstance(other, Growth):
            if self.direction != other.direction:
                return None
            return self if self.rate > other.rate else other
        d, s = other.degree, self.start
        most = other.sup() * s**-d
        for k, c in enumerate(other.polynomial):
            most += abs(arb(c)) * s ** (k - d)
        return self._with(self.scale - Remainder(most.upper(), self.rate, d).sup(s), self.rate)

    def times(self, other: Growth | Asymptote) -> Growth | None:
        if isinstance(other, Growth):
            found = self._with(self.scale * other.scale, self.rate + other.rate)
            return found if found is None or other.direction > 0 else found.negated()
        if other.positive():
            return self._with(self.scale * (other.shifted()[0] - other.sup()), self.rate)
        return self.negated().times(other.negated()) if other.negated().positive() else None

    def power(self, exponent: Fraction) -> Growth | Asymptote | None:
        if self.direction < 0 and exponent.denominator > 1:
            return None
        a = arb(fmpq(exponent.numerator, exponent.denominator))
        scale, rate = (self.scale.log() * a).exp(), self.rate * a
        if exponent < 0:
            return self.nearly(fmpq(0), Remainder(scale.upper(), (-rate).lower(), 0))
        found = self._with(scale, rate)
        return found if found is None or self.direction > 0 or exponent.numerator % 2 else found.negated()

    def nearly(self, constant: fmpq, remainder: Remainder = NOTHING) -> Asymptote:
        """What is a constant but for a remainder on the same side."""
        return Asymptote((constant,), remainder, self.sign, self.start)

    def linear_bound(self) -> tuple[arb, arb]:
        """(c_0, c_1) with direction * f >= c_0 + c_1 t and c_1 > 0."""
        low = self.scale * (self.rate * self.start).exp()
        return low.lower(), (low * self.rate).lower()

    def _with(self, scale: arb, rate: arb) -> Growth | None:
        """With another bound, where it is one."""
        scale, rate = scale.lower(), rate.lower()
        return self._replace(scale=scale, rate=rate) if scale > 0 and rate > 0 and scale.is_finite() else None


def growing(op: str, rising: bool, low: arb, step: arb, sign: int, start: arb) -> Growth | None:
    """A function of u for |u| >= low + step*t, where that grows exponentially."""
    if op not in GROWING[rising] or (op == "sinh" and not low >= 0):
        return None
    found = Growth(arb(1), arb(1), 1, sign, start)._with((low - step * start).exp(), step)
    if found is not None and op in ("expm1", "sinh"):
        found = found.plus(found.nearly(fmpq(-1)))
    if found is not None and op in ("cosh", "sinh"):
        found = found._with(found.scale / 2, found.rate)
    return found.negated() if found is not None and not rising and op == "sinh" else found
