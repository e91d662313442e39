"""Arithmetic of functions that are a polynomial plus something exponentially small, far out on one side.

For y = sign*x >= s >= 1 such a function is p(x) + r(x) with |r| <= scale * y**power * exp(-rate*y). These rules keep
that form; s is the same throughout:

    weaken       y**k <= s**(k-m) y**m for k <= m, and exp(-a y) <= exp(-(a-b) s) exp(-b y) for a >= b, so the bounds of
                 two remainders add up with the larger power and the smaller rate
    p * r        |p| <= (sum of |p_k| s**(k-d)) y**d for a polynomial of degree d, so the power grows by d
    r * r        scales multiply, powers and rates add
    sup |r|      y**m exp(-a y) is largest at y = m/a, or at s when that lies before s
    linear bound with y = s + t, p = c_0 + c_1 t + ..; if c_1 > 0 and all later c_k >= 0 then p >= c_0 + c_1 t

Coefficients are rational numbers for as long as the formula's are, so that (1.702 x)/1.702 has the slope 1, and balls
from there on.
"""

from __future__ import annotations

from math import comb
from typing import NamedTuple

from flint import arb, fmpq

HIGHEST_DEGREE = 16
LONGEST = 1 << 14
"""Of rational coefficients, in bits; longer ones become balls."""
Coefficient = arb | fmpq


class Remainder(NamedTuple):
    """At most scale * y**power * exp(-rate*y) in absolute value."""

    scale: arb
    rate: arb
    power: int

    def sup(self, s: arb) -> arb:
        """An upper bound over y >= s."""
        if self.scale.is_zero():
            return arb(0)
        if self.power == 0 or s * self.rate >= self.power:
            return (self.scale * s**self.power * (-self.rate * s).exp()).upper()
        return (self.scale * (self.power / (self.rate * arb(1).exp())) ** self.power).upper()


NOTHING = Remainder(arb(0), arb(1), 0)


def add_remainders(left: Remainder, right: Remainder, s: arb) -> Remainder:
    if left.scale.is_zero():
        return right
    if right.scale.is_zero():
        return left
    rate = left.rate.min(right.rate).lower()
    power = max(left.power, right.power)
    total = arb(0)
    for part in (left, right):
        total += part.scale * s ** (part.power - power) * (-(part.rate - rate) * s).exp()
    return Remainder(total.upper(), rate, power)


def multiply_remainders(left: Remainder, right: Remainder) -> Remainder:
    if left.scale.is_zero() or right.scale.is_zero():
        return NOTHING
    return Remainder((left.scale * right.scale).upper(), (left.rate + right.rate).lower(), left.power + right.power)


def decaying(value: arb, step: arb, s: arb) -> Remainder:
    """value * exp(-step*(y - s)), which is `value` at y = s."""
    rate = step.lower()
    return Remainder((value * (rate * s).exp()).upper(), rate, 0)


def _kept(c: Coefficient) -> Coefficient:
    """The coefficient, or a ball where it is a rational number that is too long."""
    if isinstance(c, fmpq) and max(c.p.bit_length(), c.q.bit_length()) > LONGEST:
        return arb(c)
    return c


class Asymptote(NamedTuple):
    """polynomial[k] is the coefficient of x**k; its last entry is not exactly zero unless it is the only one."""

    polynomial: tuple[Coefficient, ...]
    remainder: Remainder
    sign: int
    start: arb

    @property
    def degree(self) -> int:
        return len(self.polynomial) - 1

    def with_polynomial(self, polynomial: tuple[Coefficient, ...], remainder: Remainder) -> Asymptote:
        polynomial = tuple(map(_kept, polynomial))
        while len(polynomial) > 1 and polynomial[-1] == 0:
            polynomial = polynomial[:-1]
        return Asymptote(polynomial, remainder, self.sign, self.start)

    def sup(self) -> arb:
        return self.remainder.sup(self.start)

    def negated(self) -> Asymptote:
        return self.with_polynomial(tuple(-c for c in self.polynomial), self.remainder)

    def plus(self, other: Asymptote) -> Asymptote:
        longer, shorter = self.polynomial, other.polynomial
        if len(longer) < len(shorter):
            longer, shorter = shorter, longer
        total = tuple(c + shorter[k] if k < len(shorter) else c for k, c in enumerate(longer))
        return self.with_polynomial(total, add_remainders(self.remainder, other.remainder, self.start))

    def times(self, other: Asymptote) -> Asymptote | None:
        if self.degree + other.degree > HIGHEST_DEGREE:
            return None
        product: list[Coefficient] = [fmpq(0)] * (self.degree + other.degree + 1)
        for i, a in enumerate(self.polynomial):
            for j, b in enumerate(other.polynomial):
                product[i + j] = product[i + j] + a * b
        remainder = multiply_remainders(self.remainder, other.remainder)
        for one, two in ((self, other), (other, self)):
            remainder = add_remainders(remainder, two._times_polynomial_of(one), self.start)
        return self.with_polynomial(tuple(product), remainder)

    def _times_polynomial_of(self, other: Asymptote) -> Remainder:
        scale, rate, power = self.remainder
        size = arb(0)
        for k, c in enumerate(other.polynomial):
            size += abs(arb(c)) * self.start ** (k - other.degree)
        if scale.is_zero() or size.is_zero():
            return NOTHING
        return Remainder((scale * size).upper(), rate, power + other.degree)

    def shifted(self) -> list[arb]:
        """c_k with p(x) = sum of c_k t**k, y = start + t."""
        signed = [c * self.sign**j for j, c in enumerate(self.polynomial)]
        return [
            sum((signed[j] * comb(j, k) * self.start ** (j - k) for j in range(k, len(signed))), arb(0))
            for k in range(len(signed))
        ]

    def linear_bound(self) -> tuple[arb, arb] | None:
        """(c_0, c_1) with c_1 > 0 and the function at least c_0 + c_1 t, where that can be told; else None."""
        c = self.shifted()
        if len(c) > 1 and c[1] > 0 and all(later >= 0 for later in c[2:]):
            return c[0] - self.sup(), c[1].lower()
        return None

    def positive(self) -> bool:
        """Whether the function is known to be positive for every y >= start."""
        c = self.shifted()
        return bool(c[0] - self.sup() > 0 and all(later >= 0 for later in c[1:]))
