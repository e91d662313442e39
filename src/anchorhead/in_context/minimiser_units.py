"""The objective of `minimiser_bound.py` in units of its own, in which nothing that matters underflows.

    z_ij = (x_ij - a_j)/2^k_j,   v_j = w_j 2^{k_j - u},   c + a·w = centre·2^u,   y_i/2^u,   weight_i/2^q

and F over 2^{q + p + 2u}. For squares and Huber's loss 2^u is the largest label's power of two and p = 0; the other
losses have u = 0, and for counts slopes are divided by 2^p, the largest label's. Column j's power is that of its spread
or, where the penalty's curvature is larger, that of its root, so that H's diagonal is neither large nor, but for
dependent columns, small.

*Roundings.* x - a has one. The centre is summed by fractions and rounded once. All the rest are products with powers of
two, exact but where the result is below the least normal float: then it is off by at most 2^-1075, and since a spread
is at least 2^-60 of its column's largest entry, z by 2^-1015.

*Underflow.* Any other product or quotient that is too small is off by 2^-1074. Of n examples in d columns a sum has at
most n + d of these, each times numbers up to `HUGE` = 2^100: for n d <= 2^60, which is checked, everything stays below
`FLOOR` = 2^-800, which is added to predictions, gradient and Hessian. exp is off by less than `LOST` where it is
subnormal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

FLOOR = 2.0**-800
HUGE = 2.0**100
LOST = 2.0**-1070
LEAST_SPREAD = 2.0**-60
LEAST_PENALTY = 2.0**-960
"""Below this a penalty, a product of what was given, may have lost digits."""
Array = np.ndarray


@dataclass(frozen=True)
class Problem:
    """F. y: (n,) or (targets, n), of several classes their numbers. corner: where Huber's loss becomes linear."""

    X: Array
    y: Array
    weights: Array
    intercept: bool
    loss: str = "squared"
    l2: float = 0.0
    l1: float = 0.0
    corner: float = math.inf


class Units(NamedTuple):
    """z, a over its columns' own powers of two, those, k, weights, l2 of v, and the exponents q and p."""

    Z: Array
    near: Array
    own: Array
    powers: Array
    weights: Array
    l2: Array
    weight: int
    slope: int
    intercept: bool

    @property
    def shift(self) -> Array:
        """a/2^k."""
        found: Array = np.ldexp(self.near, self.own - self.powers)
        return found

    def of(self, columns: Array) -> Units:
        """Those of some columns, by their numbers."""
        whole = np.append(columns, len(self.powers)) if self.intercept else columns
        near, own, powers, l2 = (part[columns] for part in (self.near, self.own, self.powers, self.l2))
        return self._replace(Z=self.Z[:, whole], near=near, own=own, powers=powers, l2=l2)

    def of_labels(self, y: Array, loss: str) -> int:
        """u."""
        return _exponent(y) if loss in ("squared", "huber") else 0

    def coefficients(self, w: Array, c: float, unit: int) -> Array:
        """v and, with an intercept, the centre."""
        v: Array = np.ldexp(w, self.powers - unit)
        if not self.intercept:
            return v
        parts = zip(self.near, self.own, w, strict=True)
        try:
            total = Fraction(c) + sum((Fraction(a) * _two(int(k)) * Fraction(b) for a, k, b in parts), Fraction(0))
            return np.append(v, float(total / _two(unit)))
        except (OverflowError, ValueError):
            return np.append(v, math.nan)

    def l1(self, value: float, unit: int) -> Array:
        """The penalty on |v|; one that is huge holds zeros as a smaller one does."""
        found: Array = np.minimum(np.ldexp(value, -self.powers - unit - self.weight), HUGE**2)
        return found

    def upwards(self, bounds: Array, unit: int) -> Array:
        """Bounds on v as ones on w, rounded up."""
        found: Array = np.nextafter(np.ldexp(bounds, unit - self.powers), math.inf)
        return found


def in_units(problem: Problem) -> Units | str:
    """The units, or why there are none."""
    X, (n, d) = problem.X, problem.X.shape
    if (problem.l2 and not LEAST_PENALTY <= problem.l2 < math.inf) or (problem.l1 and not problem.l1 >= LEAST_PENALTY):
        return "the penalty is so small or so large that its product with the weights is not known"
    if (n + 1) * (d + 1) > 2**60:
        return "no bound is computed for so many numbers"
    weight, slope = _exponent(problem.weights), _exponent(problem.y) if problem.loss == "poisson" else 0
    own = np.frexp(np.abs(X).max(0))[1].astype(int)
    near = np.ldexp(X, -own)
    shift = near.mean(0) if problem.intercept else np.zeros(d)
    apart = near - shift
    spread = np.abs(apart).max(0)
    if ((spread > 0) & (spread < LEAST_SPREAD)).any():
        return "a column varies by less than the digits of its entries"
    powers = own + np.frexp(spread)[1]
    if problem.l2:
        powers = np.maximum(powers, (math.frexp(problem.l2)[1] - weight - slope + 1) // 2)
    Z = np.ldexp(apart, own - powers)
    return Units(
        Z=np.column_stack([Z, np.ones(n)]) if problem.intercept else Z,
        near=shift,
        own=own,
        powers=powers,
        weights=np.ldexp(problem.weights, -weight),
        l2=np.ldexp(np.full(d, problem.l2), -2 * powers - weight - slope),
        weight=weight,
        slope=slope,
        intercept=problem.intercept,
    )


def penalty_of(*factors: float) -> float:
    """The product of what was given; NaN where it is so small that digits are lost."""
    found = math.prod(map(float, factors))
    return math.nan if found < LEAST_PENALTY and 0.0 not in factors else found


def _exponent(values: Array) -> int:
    """Of the next power of two above the largest."""
    return int(np.frexp(np.abs(values).max(initial=0.0))[1])


def _two(exponent: int) -> Fraction:
    return Fraction(2) ** exponent
