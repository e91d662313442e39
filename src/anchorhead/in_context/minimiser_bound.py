"""How far fitted coefficients are from the minimiser's, proved from the data: a small gradient and a curved objective.

    F(w, c) = sum of weight_i l(w·x_i + c, y_i) + l2·|w|²/2 + l1·|w|_1          in real numbers, for the data as given

*Strong convexity.* Let G be a (sub)gradient at the coefficients, T any matrix, and let F's Hessian H near them satisfy
T^T H T >= m > 0. On the sphere |t| = ρ around them, in coordinates T t, F's gradient has at least -|T^T G| ρ + m ρ²
along t; where that is positive the minimiser lies inside. So it is within ρ of them, in t, for every ρ with
m ρ > |T^T G|, and coefficient j within ρ times the length of T's row j.

*How m depends on ρ.* Squares, with l1 or not: it does not. The logistic loss and exp have |l'''| <= l'', so l'' falls
to no less than e^-δ of itself where predictions move by δ <= B ρ, B the largest |T^T x_i|: m(ρ) = m e^{-Bρ}. Huber's:
only examples count whose residual stays inside of the corner by `MARGIN` of it, and B ρ may not exceed that.

*In floats.* T is the inverse of H's Cholesky factor, as it was computed; nothing is assumed of it but that it is
regular, which m > 0 shows. All is computed in units that powers of two make near one, and an absolute `FLOOR` covers
underflow (`minimiser_units.py`). Sums over examples are taken over blocks of `BLOCK` rows and then over blocks, so that
any order of summation errs by γ_{BLOCK + n/BLOCK} of the sum of absolute values. m >= 1 - |1 - T^T H T| - what rounding
may have changed, Frobenius's norm; the bounds are sums of positive numbers, and a relative `SAFE` covers their own
roundings.

*The l1 penalty.* Where w_j = 0, every number within l1 of the squares' slope is a subgradient: if that slope, with its
error, is at most l1, zero is one, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from anchorhead.in_context.minimiser_units import FLOOR, HUGE, LOST, Problem, Units, in_units

UNIT = 2.0**-53
BLOCK = 512
SAFE = 1 + 1e-8
MARGIN = 2.0**-10
MOST_COLUMNS = 2000
MOST_NAMED = 8
SHARE = 1e-3
"""Of the largest entry of a direction, for a column to be named."""
Array = np.ndarray
Known = tuple[Array, float]
"""T and m."""


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


def _gamma(count: float) -> float:
    return count * UNIT / (1 - count * UNIT)


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

    Coefficients of columns that change no prediction but by a constant, which an intercept takes up, are zero in the
    shortest minimiser: where they are zero, they are right, and the others are bounded without them.
    """
    if problem.X.shape[1] > MOST_COLUMNS:
        return f"no bound is computed for more than {MOST_COLUMNS:,} columns"
    w, c, y = np.atleast_2d(coefficients), np.atleast_1d(intercept), np.atleast_2d(problem.y)
    still = (problem.X[0] == problem.X).all(0) if problem.intercept else ~problem.X.any(0)
    kept = np.flatnonzero(~still | w.any(0))
    bounds = np.zeros((len(w), w.shape[1] + 1))
    if len(kept) or problem.intercept:
        problem = replace(problem, X=problem.X[:, kept])
        with np.errstate(all="ignore"):
            units = in_units(problem)
            found = units if isinstance(units, str) else _Bound(problem, units, kept).of(w[:, kept], c, y)
        if isinstance(found, str):
            return found
        bounds[:, np.append(kept, w.shape[1])] = found
    if not np.isfinite(bounds).all():
        return "a bound is larger than the largest float"
    return bounds if problem.y.ndim == 2 else bounds[0]


class _Bound:
    """The bound for each target, in the problem's own units."""

    def __init__(self, problem: Problem, units: Units, columns: Array) -> None:
        """columns: as the data number them."""
        self.problem, self.units, self.Z, self.columns = problem, units, units.Z, columns
        self.sum_error = _gamma(BLOCK + len(units.Z) / BLOCK + 24)

    def of(self, coefficients: Array, intercepts: Array, labels: Array) -> Array | str:
        rows: list[tuple[Array, Known]] = []
        for w, c, y in zip(coefficients, intercepts, labels, strict=True):
            found = self._one(w, float(c), y, rows[0][1] if rows and self.problem.loss == "squared" else None)
            if isinstance(found, str):
                return found
            rows.append(found)
        return np.array([bound for bound, _ in rows])

    def _one(self, w: Array, c: float, y: Array, known: Known | None) -> tuple[Array, Known] | str:
        units = self.units
        unit = units.of_labels(y, self.problem.loss)
        whole = units.coefficients(w, c, unit)
        off = _gamma(len(whole) + 6) * (np.abs(self.Z) @ np.abs(whole)) + FLOOR
        corner = float(np.ldexp(self.problem.corner, -unit))
        slopes = LOSSES[self.problem.loss](self.Z @ whole, off, np.ldexp(y, -unit), corner)
        slopes = slopes.over(units.slope)
        if not (max(np.abs(whole).max(initial=0.0), np.abs(slopes.first).max()) <= HUGE and corner >= 1 / HUGE):
            return "the coefficients or predictions are so large beside the labels that floats do not bound them"
        made = self._conditioner(slopes.second) if known is None else known
        if isinstance(made, str):
            return made
        T, least = made
        gradient, error = self._gradient(slopes, whole[: len(w)], unit)
        along = np.abs(T.T @ gradient) + _gamma(len(T) + 2) * (np.abs(T.T) @ np.abs(gradient)) + np.abs(T.T) @ error
        radius = self._radius(float(_lengths(along + FLOOR)) * SAFE, least, slopes, T, corner)
        if isinstance(radius, str):
            return radius
        return self._in_units(T, radius, unit), (T, least)

    def _gradient(self, slopes: Slopes, v: Array, unit: int) -> tuple[Array, Array]:
        """The least subgradient in the problem's units, and how far it may be off."""
        weights, l2, d = self.units.weights, self.units.l2, len(v)
        weighted = weights * slopes.first
        found = _summed(self.Z, weighted[:, None])[:, 0]
        sizes = _summed(np.abs(self.Z), np.column_stack([np.abs(weighted), weights * slopes.error]))
        error = (self.sum_error * sizes[:, 0] + sizes[:, 1]) * SAFE + FLOOR
        found[:d] += l2 * v
        error[:d] += (8 * UNIT + self.sum_error) * (np.abs(found[:d]) + l2 * np.abs(v))
        if self.problem.l1:
            l1 = self.units.l1(self.problem.l1, unit)
            least = l1 * (1 - 8 * UNIT - self.sum_error)  # the sum of weights in l1
            inside = (v == 0) & (np.abs(found[:d]) + error[:d] <= least)
            free = np.sign(found[:d]) * np.maximum(np.abs(found[:d]) - l1, 0.0)
            found[:d] = np.where(v == 0, free, found[:d] + l1 * np.sign(v))
            error[:d] += 8 * UNIT * (np.abs(found[:d]) + l1) + self.sum_error * l1
            found[:d], error[:d] = np.where(inside, 0.0, found[:d]), np.where(inside, 0.0, error[:d])
        return found, error

    def _conditioner(self, second: Array) -> Known | str:
        """T and m."""
        Z, weights, l2 = self.Z, self.units.weights * second, self.units.l2
        H = _summed(Z, weights[:, None] * Z)
        rounded = self.sum_error * _summed(np.abs(Z), weights[:, None] * np.abs(Z)) * SAFE + FLOOR
        at = np.arange(len(l2))
        H[at, at] += l2
        rounded[at, at] += self.sum_error * l2
        size = np.abs(H)
        try:
            T = np.linalg.solve(np.linalg.cholesky(H), np.eye(len(H))).T
        except np.linalg.LinAlgError:
            T = np.full_like(H, np.nan)
        near = np.eye(len(H)) - T.T @ (H @ T)
        astray = np.abs(T.T) @ ((rounded + _gamma(2 * len(H) + 6) * size) @ np.abs(T))
        least = 1 - float(np.linalg.norm(near) + np.linalg.norm(astray) * SAFE) - 1e-12
        if not (least > 0 and np.abs(T).max() <= HUGE):
            return (
                f"{_dependent(H, self.columns)} linearly dependent, or so nearly that in float64 no eigenvalue of the "
                "Hessian is proved to be positive: the minimiser is not known to be one"
            )
        return T, least

    def _radius(self, length: float, least: float, slopes: Slopes, T: Array, corner: float) -> float | str:
        """ρ."""
        radius = length / least * SAFE
        if slopes.falls:
            reach = float(_lengths(self.Z @ T).max()) * SAFE * (1 + _gamma(2 * len(T) + 4))
            reach += _gamma(len(T)) * float(_lengths(np.abs(self.Z) @ np.abs(T)).max()) * SAFE + FLOOR
            if self.problem.loss == "huber":
                if not reach * radius <= MARGIN * corner / 2:
                    return "residuals lie so close to the corner of the loss that which of them count is not known"
                return radius
            if not 2 * reach * radius <= math.log(2):
                return "the gradient is not small enough for the curvature near by to be known"
            radius *= math.exp(2 * reach * radius) * SAFE
        return radius if math.isfinite(radius) else "the gradient is not finite"

    def _in_units(self, T: Array, radius: float, unit: int) -> Array:
        """In the units of the data: the lengths of T's rows, and the intercept's c = centre - shift·w."""
        shift = self.units.shift
        d = len(shift)
        bounds = self.units.upwards(_lengths(T[:d]) * radius * SAFE, unit)
        if not self.problem.intercept:
            return np.append(bounds, 0.0)
        row = T[d] - shift @ T[:d]
        slack = _gamma(d + 4) * (np.abs(T[d]) + np.abs(shift) @ np.abs(T[:d])) + FLOOR
        last = float(_lengths(np.abs(row) + slack)) * radius * SAFE
        return np.append(bounds, np.nextafter(np.ldexp(last, unit), math.inf))


def _dependent(H: Array, columns: Array) -> str:
    """The columns that take part in the direction of least curvature, and a verb."""
    diagonal = np.sqrt(np.maximum(np.diag(H), 0.0))
    if not (np.isfinite(H).all() and (diagonal > 0).all()):
        return "the columns are"
    along = np.abs(np.linalg.eigh(H / diagonal[:, None] / diagonal)[1][:, 0])[: len(columns)]
    named = [str(j) for j in columns[along > SHARE * along.max(initial=0.0)]]
    if len(named) < 2:
        return "the columns are"
    most = named if len(named) <= MOST_NAMED else [*named[: MOST_NAMED - 1], f"{len(named) - MOST_NAMED + 1} others"]
    return f"columns {', '.join(most[:-1])} and {most[-1]} are"


def _lengths(rows: Array) -> Array:
    """Euclidean lengths along the last dimension, of numbers that may be too small to square."""
    largest = np.abs(rows).max(-1, keepdims=True, initial=0.0)
    safe = np.where(largest > 0, largest, 1.0)
    found: Array = safe[..., 0] * np.sqrt(((rows / safe) ** 2).sum(-1)) * SAFE
    return found


def _summed(left: Array, right: Array) -> Array:
    """left^T right, over blocks of rows and then over blocks."""
    whole = len(left) // BLOCK * BLOCK
    found = left[whole:].T @ right[whole:]
    if whole:
        blocks = left[:whole].reshape(-1, BLOCK, left.shape[1]).transpose(0, 2, 1)
        found = found + np.matmul(blocks, right[:whole].reshape(-1, BLOCK, right.shape[1])).sum(0)
    return found
