"""What a target does at plus or minus infinity: the line it approaches, and a proved bound of how fast.

For y = sign*x >= start, f(x) = slope*x + intercept + r(x) with |r| <= scale * y**power * exp(-rate*y). The graph is
walked once in the arithmetic of `asymptotes`; a function meets one of these rules, with u its argument and
u >= c_0 + c_1 t, y = start + t, in the rising cases (falling ones mirrored):

    u tends to a constant c    f(u) = f(c) + rho, |rho| <= sup|f'| |r|, f' over the ball of radius sup|r| around c
    u rises                    sigmoid(u) = 1 - sigmoid(-u), sigmoid(-u) <= exp(-u); tanh(u) = 1 - 2 sigmoid(-2u);
                               softplus(u) = u + softplus(-u), softplus(-u) <= exp(-u);
                               erf(u) = 1 - erfc(u), erfc(u) <= exp(-u**2) <= exp(-c_0**2 - 2 c_0 c_1 t) for c_0 >= 0
    u falls                    exp(u) <= exp(c_0 - c_1 t), and sigmoid, softplus <= exp(u); erfc(u) = 2 - erfc(-u)
    u grows exponentially      what divides by it vanishes (`growth.py`); exp(u) does, where u rises
    max, min, abs              the branch that is larger from start on, or both when they approach the same polynomial

Anything else, and what does not approach a line, has no tail here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flint import arb, fmpq

from anchorhead.enclosure import ranges
from anchorhead.enclosure.asymptotes import NOTHING, Asymptote, Coefficient, Remainder, add_remainders, decaying
from anchorhead.enclosure.growth import GROWING, Growth, growing
from anchorhead.enclosure.taylor import TAYLOR, powers
from anchorhead.errors import InputError
from anchorhead.expression.graph import Node, number_of, ordered, value_of
from anchorhead.expression.primitives import primitive

Known = Asymptote | Growth


class Tail(NamedTuple):
    """f(x) = slope*x + intercept + r(x) for y = sign*x >= start, |r| <= scale * y**power * exp(-rate*y).

    slope, intercept: rational numbers where they are known to be, and else balls.
    """

    slope: Coefficient
    intercept: Coefficient
    scale: arb
    rate: arb
    power: int
    start: arb
    sign: int

    def sup(self, beyond: arb | float | None = None) -> arb:
        """An upper bound of |r| over y >= start, or over y >= beyond, which must not be less than start."""
        s = self.start if beyond is None else arb(beyond)
        if not s >= self.start:
            raise InputError(f"A tail that starts at {self.start} says nothing about {s}; ask from its start on.")
        return Remainder(self.scale, self.rate, self.power).sup(s)


def tail(node: Node, variable: str, sign: int, start: arb | float) -> Tail | None:
    """The tail of the target on the side of `sign` (1 or -1) from `start` >= 1 on; None when it has none."""
    s = arb(start)
    if sign not in (1, -1) or not s >= 1:
        raise InputError(f"A tail has the sign 1 or -1 and starts at 1 or later; got {sign} and {start}.")
    lowered = primitive(node)
    found: dict[Node, Known | None] = {}
    for part in ordered([lowered]):
        found[part] = _rule(part, found, variable, sign, s)
    result = found[lowered]
    if not isinstance(result, Asymptote) or result.degree > 1 or not all(arb(c).is_finite() for c in result.polynomial):
        return None
    intercept, slope = (*result.polynomial, fmpq(0))[:2]
    scale, rate, power = result.remainder
    return Tail(slope, intercept, scale, rate, power, s, sign) if scale.is_finite() else None


def _rule(part: Node, found: Mapping[Node, Known | None], variable: str, sign: int, s: arb) -> Known | None:
    if part.op == "variable":
        return Asymptote((fmpq(0), fmpq(1)), NOTHING, sign, s) if part.value == variable else None
    if part.op == "constant":
        value = value_of(part)
        return Asymptote((fmpq(value.numerator, value.denominator),), NOTHING, sign, s)
    if part.op == "pi":
        return Asymptote((arb.pi(),), NOTHING, sign, s)
    given = [found[arg] for arg in part.args]
    args = [arg for arg in given if arg is not None]
    if len(args) < len(given):
        return None
    u, v = args[0], args[-1]
    if part.op == "neg":
        return u.negated()
    if part.op == "add":
        return _sum(u, v)
    if part.op == "mul":
        return _product(u, v)
    if part.op == "abs":
        return _larger(u, u.negated())
    if part.op == "max":
        return _larger(u, v)
    if part.op == "min":
        largest = _larger(u.negated(), v.negated())
        return None if largest is None else largest.negated()
    if isinstance(u, Growth):
        return _of_growth(part, u)
    if u.degree == 0:
        return _of_constant(part, u, arb(v.polynomial[0]) if part.op == "pow" and isinstance(v, Asymptote) else None)
    if part.op == "power":
        return _whole_power(u, part.value)
    return _of_moving(part.op, u)


def _of_constant(part: Node, u: Asymptote, exponent: arb | None) -> Asymptote | None:
    """f(c + r), by the mean value theorem over the ball of radius sup|r| around c; exponent: of a pow."""
    exact = u.polynomial[0]
    centre = arb(exact)
    raised = value_of(part) if part.op == "power" else exponent
    value: Coefficient = ranges.RANGES[part.op](centre) if raised is None else ranges.power(centre, raised)
    if not arb(value).is_finite():
        return None
    if part.op == "power" and part.value == -1 and isinstance(exact, fmpq):
        value = 1 / exact
    if u.remainder.scale.is_zero():
        return u.with_polynomial((value,), NOTHING)
    around = centre + arb(0, u.sup())
    slopes = TAYLOR[part.op](around, 1) if raised is None else powers(around, raised, 1)
    if len(slopes) < 2 or not slopes[1].is_finite():
        return None
    return u.with_polynomial((value,), _scaled(u.remainder, slopes[1].abs_upper()))


def _scaled(remainder: Remainder, factor: arb) -> Remainder:
    return remainder._replace(scale=(remainder.scale * factor).upper()) if not factor.is_zero() else NOTHING


def _whole_power(u: Asymptote, exponent: object) -> Asymptote | None:
    if not isinstance(exponent, int) or not 0 < exponent <= 16:
        return None
    result: Asymptote | None = u
    for _ in range(exponent - 1):
        result = None if result is None else result.times(u)
    return result


def _sum(u: Known, v: Known) -> Known | None:
    if isinstance(u, Growth):
        return u.plus(v)
    return v.plus(u) if isinstance(v, Growth) else u.plus(v)


def _product(u: Known, v: Known) -> Known | None:
    if isinstance(u, Growth):
        return u.times(v)
    return v.times(u) if isinstance(v, Growth) else u.times(v)


def _of_growth(part: Node, u: Growth) -> Known | None:
    """A function of an argument that grows exponentially."""
    if part.op == "power":
        return u.power(number_of(part))
    if part.op == "softplus" and u.direction > 0:
        return u  # which is less
    return _saturated(part.op, u.nearly(fmpq(0)), u.direction > 0, *u.linear_bound())


def _of_moving(op: str, u: Asymptote) -> Known | None:
    """A function of an argument that tends to plus or minus infinity."""
    for rising in (True, False):
        bound = (u if rising else u.negated()).linear_bound()
        if bound is not None:
            return _saturated(op, u, rising, *bound)
    return None


def _saturated(op: str, u: Asymptote, rising: bool, low: arb, step: arb) -> Known | None:
    """|u| >= low + step*t; `small` is the bound exp(-|u|) of what the function still lacks."""
    if op in GROWING[rising]:
        return growing(op, rising, low, step, u.sign, u.start)
    small = decaying((-low).exp(), step, u.start)
    limit = {"exp": (None, 0), "expm1": (None, -1), "sigmoid": (1, 0), "tanh": (1, -1), "erf": (1, -1), "erfc": (0, 2)}
    if op == "softplus":
        if rising:
            return u.with_polynomial(u.polynomial, add_remainders(u.remainder, small, u.start))
        return u.with_polynomial((fmpq(0),), small)
    if op not in limit:
        return None
    if op == "tanh":
        small = decaying(2 * (-2 * low).exp(), 2 * step, u.start)
    if op in ("erf", "erfc"):
        if not low >= 0:
            return None
        small = decaying((-low * low).exp(), 2 * low * step, u.start)
    value = limit[op][0 if rising else 1]
    return None if value is None else u.with_polynomial((fmpq(value),), small)


def _larger(u: Known, v: Known) -> Known | None:
    difference = _sum(u, v.negated())
    if isinstance(difference, Growth):
        return u if difference.direction > 0 else v
    if difference is None or isinstance(u, Growth) or isinstance(v, Growth):
        return None
    if difference.positive():
        return u
    if difference.negated().positive():
        return v
    if difference.degree == 0 and difference.polynomial[0] == 0:
        return u.with_polynomial(u.polynomial, add_remainders(u.remainder, v.remainder, u.start))
    return None
