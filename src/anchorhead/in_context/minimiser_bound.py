"""How far fitted coefficients are from the minimiser's, proved from the data: a small gradient and a curved objective.

    F(w, c) = sum of weight_i l(w·x_i + c, y_i) + l2·|w|²/2 + l1·|w|_1          in real numbers, for the data as given

*Strong convexity.* Let G be a (sub)gradient at the coefficients, T any matrix, and let F's Hessian H near them satisfy
T^T H T >= m > 0. On the sphere |t| = ρ around them, in coordinates T t, F's gradient has at least -|T^T G| ρ + m ρ²
along t; where that is positive the minimiser lies inside. So it is within ρ of them, in t, for every ρ with
m ρ > |T^T G|, and coefficient j within ρ times the length of T's row j.

*How m depends on ρ.* Squares, with l1 or not: it does not. The logistic loss and exp have |l'''| <= l'', so l'' falls
to no less than e^-δ of itself where predictions move by δ <= B ρ, B the largest |T^T x_i|: m(ρ) = m e^{-Bρ}. Huber's:
only examples count whose residual stays inside of the corner by `MARGIN` of it, and B ρ may not exceed that.

*In floats.* All is computed in units that powers of two make near one, and an absolute `FLOOR` covers underflow
(`minimiser_units.py`); what sums, T and m may be off by is in `minimiser_sums.py`.

*The l1 penalty.* Where w_j = 0, every number within l1 of the squares' slope is a subgradient: if that slope, with its
error, is at most l1, zero is one, exactly. Columns may outnumber the examples. Let K be some of them, with all
whose coefficients are not zero, and the intercept. The minimiser over K is within ρ of the coefficients, in t, so that
its predictions differ by at most |Z_K T t| <= sqrt(2 - m) ρ, lengths with the examples' weights, and the slope of a
column j outside of K by |z_j| sqrt(2 - m) ρ. If all of these slopes stay below l1 then, it is a minimiser over all
columns; and the only one, since all minimisers have the same predictions, so the same slopes, so zeros outside of K.
Columns whose slopes are not below l1 join K.

`class_bound.py` has the multinomial loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from anchorhead.in_context.class_bound import ClassBound
from anchorhead.in_context.minimiser_sums import (
    SAFE,
    UNIT,
    Known,
    along,
    conditioner,
    fallen,
    flat,
    gamma,
    in_data_units,
    reach,
    sum_error,
    summed,
)
from anchorhead.in_context.minimiser_units import FLOOR, HUGE, LOST, Problem, Units, in_units

MARGIN = 2.0**-10
MOST_COLUMNS = 2000
Array = np.ndarray


class Slopes(NamedTuple):
    """l', how far it may be off, and a lower bound of l'' that holds near by; falls: whether l'' may fall off."""

    first: Array
    error: Array
    second: Array
    falls: bool

    def over(self, exponent: int) -> Slopes:
        """Divided by a power of two."""
        first, error, second = (np.ldexp(part, -exponent) for part in (self.first, self.error, self.second))
        return Slopes(first, error, second, self.falls)


class At(NamedTuple):
    """Where a bound is computed: the coefficients and the intercept in the problem's units, their exponent, slopes."""

    whole: Array
    unit: int
    slopes: Slopes
    corner: float


class Found(NamedTuple):
    """Bounds for the coefficients and, last, the intercept, what they follow from, and ρ."""

    bounds: Array
    known: Known
    radius: float


NOTHING = Found(np.zeros(1), (np.zeros((0, 0)), 1.0), 0.0)
"""Of no columns and no intercept."""


def _squared(s: Array, off: Array, y: Array, corner: float) -> Slopes:
    first = s - y
    error = off + 4 * UNIT * np.abs(first)
    if math.isinf(corner):
        return Slopes(first, error, np.ones_like(s), False)
    sure = np.abs(first) + error <= corner * (1 - MARGIN)
    return Slopes(np.clip(first, -corner, corner), error, sure.astype(float), True)


def _logistic(s: Array, off: Array, y: Array, corner: float) -> Slopes:
    small = np.exp(-np.abs(s))
    chance = np.where(s >= 0, 1, small) / (1 + small)
    second = small / (1 + small) ** 2
    error = 0.25 * off + 16 * UNIT
    return Slopes(chance - y, error, np.maximum(second * (1 - 32 * UNIT) * np.exp(-off) - LOST, 0.0), True)


def _poisson(s: Array, off: Array, y: Array, corner: float) -> Slopes:
    mean, blur = np.exp(s), 8 * UNIT * (1 + np.abs(s))
    error = mean * (np.expm1(off) + blur) + UNIT * np.abs(y) + LOST
    return Slopes(mean - y, error, np.maximum(mean * np.exp(-off) * (1 - blur) - LOST, 0.0), True)


LOSSES: dict[str, Callable[[Array, Array, Array, float], Slopes]] = {
    "squared": _squared,
    "huber": _squared,
    "logistic": _logistic,
    "poisson": _poisson,
}


def distances(problem: Problem, coefficients: Array, intercept: Array) -> Array | str:
    """Bounds for every coefficient and, last, the intercept, (..., d + 1); or why there are none.

    Of several classes, loss "classes", labels are their numbers, and coefficients and intercepts have a row for each.
    Coefficients of columns that change no prediction but by a constant, which an intercept takes up, are zero in the
    shortest minimiser: where they are zero, they are right, and the others are bounded without them.
    """
    w, c, y = np.atleast_2d(coefficients), np.atleast_1d(intercept), np.atleast_2d(problem.y)
    classes = problem.loss == "classes"
    still = (problem.X[0] == problem.X).all(0) if problem.intercept else ~problem.X.any(0)
    kept = np.flatnonzero(~still | w.any(0))
    bounds = np.zeros((len(w), w.shape[1] + 1))
    if len(kept) or problem.intercept:
        problem = replace(problem, X=problem.X[:, kept])
        with np.errstate(all="ignore"):
            units = in_units(problem)
            if isinstance(units, str):
                return units
            found = (
                ClassBound(problem, units, kept).of(w[:, kept], c)
                if classes
                else _Bound(problem, units, kept).of(w[:, kept], c, y)
            )
        if isinstance(found, str):
            return found
        bounds[:, np.append(kept, w.shape[1])] = found
    if not np.isfinite(bounds).all():
        return "a bound is larger than the largest float"
    return bounds if classes or problem.y.ndim == 2 else bounds[0]


class _Bound:
    """The bound for each target, in the problem's own units."""

    def __init__(self, problem: Problem, units: Units, columns: Array) -> None:
        """columns: as the data number them."""
        self.problem, self.units, self.Z, self.columns = problem, units, units.Z, columns
        self.sum_error = sum_error(len(units.Z))

    def of(self, coefficients: Array, intercepts: Array, labels: Array) -> Array | str:
        rows: list[Found] = []
        for w, c, y in zip(coefficients, intercepts, labels, strict=True):
            known = rows[0].known if rows and self.problem.loss == "squared" else None
            found = self._sparse(w, float(c), y) if self.problem.l1 else self._one(w, float(c), y, known)
            if isinstance(found, str):
                return found
            rows.append(found)
        return np.array([row.bounds for row in rows])

    def _sparse(self, w: Array, c: float, y: Array) -> Found | str:
        """With an l1 penalty: over columns that take part, where the slopes of all others stay below it."""
        at = self._at(w, c, y)
        if isinstance(at, str):
            return at
        slope, error = (part[: len(w)] for part in self._slope(at.slopes, at.whole[: len(w)]))
        most = self._l1(at.unit)[1] - np.abs(slope) - error
        sizes = summed(self.Z[:, : len(w)] ** 2, self.units.weights[:, None])[:, 0]
        sizes = np.sqrt(sizes * (1 + self.sum_error) * SAFE + FLOOR)
        kept = w != 0
        while True:
            some = np.flatnonzero(kept)
            inner = replace(self.problem, X=self.problem.X[:, some])
            found: Found | str = NOTHING
            if len(some) or self.problem.intercept:
                found = _Bound(inner, self.units.of(some), self.columns[some])._one(w[some], c, y, None)
            if isinstance(found, str):
                return found
            beyond = ~kept & ~(sizes * math.sqrt(2 - found.known[1]) * found.radius * SAFE < most)
            if not beyond.any():
                bounds = np.zeros(len(w) + 1)
                bounds[np.append(some, len(w))] = found.bounds
                return found._replace(bounds=bounds)
            kept |= beyond

    def _at(self, w: Array, c: float, y: Array) -> At | str:
        """The coefficients in the problem's units, and the loss there."""
        units = self.units
        unit = units.of_labels(y, self.problem.loss)
        whole = units.coefficients(w, c, unit)
        off = gamma(len(whole) + 6) * (np.abs(self.Z) @ np.abs(whole)) + FLOOR
        corner = float(np.ldexp(self.problem.corner, -unit))
        slopes = LOSSES[self.problem.loss](self.Z @ whole, off, np.ldexp(y, -unit), corner)
        slopes = slopes.over(units.slope)
        if not (max(np.abs(whole).max(initial=0.0), np.abs(slopes.first).max()) <= HUGE and corner >= 1 / HUGE):
            return "the coefficients or predictions are so large beside the labels that floats do not bound them"
        return At(whole, unit, slopes, corner)

    def _one(self, w: Array, c: float, y: Array, known: Known | None) -> Found | str:
        at = self._at(w, c, y)
        if isinstance(at, str):
            return at
        made = self._conditioner(at.slopes.second) if known is None else known
        if isinstance(made, str):
            return made
        T, least = made
        gradient, error = self._gradient(at.slopes, at.whole[: len(w)], at.unit)
        radius = self._radius(along(T, gradient, error), least, at.slopes, T, at.corner)
        if isinstance(radius, str):
            return radius
        return Found(in_data_units(T, radius, self.units, at.unit), (T, least), radius)

    def _slope(self, slopes: Slopes, v: Array) -> tuple[Array, Array]:
        """The gradient without an l1 penalty, in the problem's units, and how far it may be off."""
        weights, l2, d = self.units.weights, self.units.l2, len(v)
        weighted = weights * slopes.first
        found = summed(self.Z, weighted[:, None])[:, 0]
        sizes = summed(np.abs(self.Z), np.column_stack([np.abs(weighted), weights * slopes.error]))
        error = (self.sum_error * sizes[:, 0] + sizes[:, 1]) * SAFE + FLOOR
        found[:d] += l2 * v
        error[:d] += (8 * UNIT + self.sum_error) * (np.abs(found[:d]) + l2 * np.abs(v))
        return found, error

    def _gradient(self, slopes: Slopes, v: Array, unit: int) -> tuple[Array, Array]:
        """The least subgradient in the problem's units, and how far it may be off."""
        (found, error), d = self._slope(slopes, v), len(v)
        if self.problem.l1:
            l1, least = self._l1(unit)
            inside = (v == 0) & (np.abs(found[:d]) + error[:d] <= least)
            free = np.sign(found[:d]) * np.maximum(np.abs(found[:d]) - l1, 0.0)
            found[:d] = np.where(v == 0, free, found[:d] + l1 * np.sign(v))
            error[:d] += 8 * UNIT * (np.abs(found[:d]) + l1) + self.sum_error * l1
            found[:d], error[:d] = np.where(inside, 0.0, found[:d]), np.where(inside, 0.0, error[:d])
        return found, error

    def _l1(self, unit: int) -> tuple[Array, Array]:
        """The penalty in the problem's units, and what it is at least: it may hold the sum of weights."""
        l1 = self.units.l1(self.problem.l1, unit)
        return l1, l1 * (1 - 8 * UNIT - self.sum_error)

    def _conditioner(self, second: Array) -> Known | str:
        """T and m."""
        Z, weights, l2 = self.Z, self.units.weights * second, self.units.l2
        if len(l2) > MOST_COLUMNS:
            return f"no bound is computed for more than {MOST_COLUMNS:,} columns"
        H = summed(Z, weights[:, None] * Z)
        rounded = self.sum_error * summed(np.abs(Z), weights[:, None] * np.abs(Z)) * SAFE + FLOOR
        at = np.arange(len(l2))
        H[at, at] += l2
        rounded[at, at] += self.sum_error * l2
        return conditioner(H, rounded) or flat(self.units, self.columns, self.problem.loss)

    def _radius(self, length: float, least: float, slopes: Slopes, T: Array, corner: float) -> float | str:
        """ρ."""
        radius = length / least * SAFE
        if not math.isfinite(radius):
            return "the gradient is not finite"
        if not slopes.falls:
            return radius
        rate = reach(self.Z, T)
        if self.problem.loss != "huber":
            return fallen(radius, rate)
        if not rate * radius <= MARGIN * corner / 2:
            return "residuals lie so close to the corner of the loss that which of them count is not known"
        return radius
