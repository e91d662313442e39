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
regular, which m > 0 shows. Columns are shifted by a and divided by powers of two, z = (x - a)/2^k, one rounding; c
becomes c + a·w, exactly, by fractions. Sums over examples are taken over blocks of `BLOCK` rows and then over blocks,
so that any order of summation errs by γ_{BLOCK + n/BLOCK} of the sum of absolute values. m >= 1 - |1 - T^T H T| - what
rounding may have changed, Frobenius's norm; the bounds are sums of positive numbers, and a relative `SAFE` covers their
own roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

UNIT = 2.0**-53
BLOCK = 512
SAFE = 1 + 1e-8
MARGIN = 2.0**-10
MOST_COLUMNS = 2000
Array = np.ndarray
Known = tuple[Array, float]
"""T and m."""


@dataclass(frozen=True)
class Problem:
    """F. labels: (n,) or (targets, n). corner: where Huber's loss becomes linear."""

    X: Array
    y: Array
    weights: Array
    intercept: bool
    loss: str = "squared"
    l2: float = 0.0
    l1: float = 0.0
    corner: float = math.inf


class Slopes(NamedTuple):
    """l', how far it may be off, and a lower bound of l'' that holds near by; falls: whether l'' may fall off."""

    first: Array
    error: Array
    second: Array
    falls: bool


def _gamma(count: float) -> float:
    return count * UNIT / (1 - count * UNIT)


def _squared(s: Array, off: Array, problem: Problem) -> Slopes:
    first = s - problem.y
    error = off + 4 * UNIT * np.abs(first)
    if math.isinf(problem.corner):
        return Slopes(first, error, np.ones_like(s), False)
    sure = np.abs(first) + error <= problem.corner * (1 - MARGIN)
    return Slopes(np.clip(first, -problem.corner, problem.corner), error, sure.astype(float), True)


def _logistic(s: Array, off: Array, problem: Problem) -> Slopes:
    small = np.exp(-np.abs(s))
    chance = np.where(s >= 0, 1, small) / (1 + small)
    second = small / (1 + small) ** 2
    error = 0.25 * off + 16 * UNIT
    return Slopes(chance - problem.y, error, second * (1 - 32 * UNIT) * np.exp(-off), True)


def _poisson(s: Array, off: Array, problem: Problem) -> Slopes:
    mean = np.exp(s)
    error = mean * (np.expm1(off) + 8 * UNIT * (1 + np.abs(s))) + UNIT * np.abs(problem.y)
    return Slopes(mean - problem.y, error, mean * np.exp(-off) * (1 - 8 * UNIT * (1 + np.abs(s))), True)


LOSSES: dict[str, Callable[[Array, Array, Problem], Slopes]] = {
    "squared": _squared,
    "huber": _squared,
    "logistic": _logistic,
    "poisson": _poisson,
}


def distances(problem: Problem, coefficients: Array, intercept: Array) -> Array | str:
    """Bounds for every coefficient and, last, the intercept, (..., d + 1); or why there are none."""
    if problem.X.shape[1] > MOST_COLUMNS:
        return f"no bound is computed for more than {MOST_COLUMNS:,} columns"
    with np.errstate(all="ignore"):
        found = _Bound(problem).of(np.atleast_2d(coefficients), np.atleast_1d(intercept), np.atleast_2d(problem.y))
    if isinstance(found, str):
        return found
    return found if problem.y.ndim == 2 else found[0]


class _Bound:
    """The data in shifted columns, and the bound for each target."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        X = problem.X
        n, d = X.shape
        self.shift = X.mean(0) if problem.intercept else np.zeros(d)
        spread = np.abs(X - self.shift).max(0)
        self.power = np.exp2(np.floor(np.log2(np.where((spread > 1e-280) & (spread < 1e280), spread, 1.0))))
        Z = (X - self.shift) / self.power
        self.Z = np.column_stack([Z, np.ones(n)]) if problem.intercept else Z
        self.sum_error = _gamma(BLOCK + n / BLOCK + 24)
        self.scaled = problem.l2 / self.power**2

    def of(self, coefficients: Array, intercepts: Array, labels: Array) -> Array | str:
        rows: list[tuple[Array, Known]] = []
        for w, c, y in zip(coefficients, intercepts, labels, strict=True):
            found = self._one(w, float(c), y, rows[0][1] if rows and self.problem.loss == "squared" else None)
            if isinstance(found, str):
                return found
            rows.append(found)
        return np.array([bound for bound, _ in rows])

    def _one(self, w: Array, c: float, y: Array, known: Known | None) -> tuple[Array, Known] | str:
        Z, problem = self.Z, self.problem
        v, centre = w * self.power, _exactly(c, self.shift, w)
        whole = np.append(v, centre) if problem.intercept else v
        s = Z @ whole
        off = _gamma(len(whole) + 6) * (np.abs(Z) @ np.abs(whole))
        slopes = LOSSES[problem.loss](s, off, Problem(**{**problem.__dict__, "y": y}))
        made = self._conditioner(slopes.second) if known is None else known
        if isinstance(made, str):
            return made
        T, least = made
        gradient, error = self._gradient(slopes, v)
        along = np.abs(T.T @ gradient) + _gamma(len(T) + 2) * (np.abs(T.T) @ np.abs(gradient)) + np.abs(T.T) @ error
        length = float(np.linalg.norm(along)) * SAFE
        radius = self._radius(length, least, slopes, T)
        if isinstance(radius, str):
            return radius
        return self._in_units(T, radius, w, c), (T, least)

    def _gradient(self, slopes: Slopes, v: Array) -> tuple[Array, Array]:
        """The least subgradient in shifted columns, and how far it may be off."""
        problem, d = self.problem, len(v)
        weighted = problem.weights * slopes.first
        found = _summed(self.Z, weighted[:, None])[:, 0]
        sizes = _summed(np.abs(self.Z), np.column_stack([np.abs(weighted), problem.weights * slopes.error]))
        error = (self.sum_error * sizes[:, 0] + sizes[:, 1]) * SAFE
        found[:d] += self.scaled * v
        error[:d] += (8 * UNIT + self.sum_error) * (np.abs(found[:d]) + self.scaled * np.abs(v))
        if problem.l1:
            l1 = problem.l1 / self.power
            free = np.sign(found[:d]) * np.maximum(np.abs(found[:d]) - l1, 0.0)
            found[:d] = np.where(v == 0, free, found[:d] + l1 * np.sign(v))
            error[:d] += 8 * UNIT * (np.abs(found[:d]) + l1) + self.sum_error * l1  # the sum of weights in l1
        return found, error

    def _conditioner(self, second: Array) -> Known | str:
        """T and m."""
        Z, weights = self.Z, self.problem.weights * second
        H = _summed(Z, weights[:, None] * Z)
        rounded = self.sum_error * _summed(np.abs(Z), weights[:, None] * np.abs(Z)) * SAFE
        at = np.arange(len(self.scaled))
        H[at, at] += self.scaled
        rounded[at, at] += self.sum_error * self.scaled
        size = np.abs(H)
        try:
            T = np.linalg.solve(np.linalg.cholesky(H), np.eye(len(H))).T
        except np.linalg.LinAlgError:
            T = np.full_like(H, np.nan)
        near = np.eye(len(H)) - T.T @ (H @ T)
        astray = np.abs(T.T) @ ((rounded + _gamma(2 * len(H) + 6) * size) @ np.abs(T))
        least = 1 - float(np.linalg.norm(near) + np.linalg.norm(astray) * SAFE) - 1e-12
        if not least > 0:
            return (
                "the columns are linearly dependent, or so nearly that in float64 no eigenvalue of the Hessian is "
                "proved to be positive: the minimiser is not known to be one"
            )
        return T, least

    def _radius(self, length: float, least: float, slopes: Slopes, T: Array) -> float | str:
        """ρ."""
        radius = length / least * SAFE
        if slopes.falls:
            reach = float(np.sqrt(((self.Z @ T) ** 2).sum(1)).max()) * SAFE * (1 + _gamma(2 * len(T) + 4))
            spread = _gamma(len(T)) * float(np.sqrt(((np.abs(self.Z) @ np.abs(T)) ** 2).sum(1)).max()) * SAFE
            reach = reach + spread
            if self.problem.loss == "huber":
                if not reach * radius <= MARGIN * self.problem.corner / 2:
                    return "residuals lie so close to the corner of the loss that which of them count is not known"
                return radius
            if not 2 * reach * radius <= math.log(2):
                return "the gradient is not small enough for the curvature near by to be known"
            radius *= math.exp(2 * reach * radius) * SAFE
        return radius if math.isfinite(radius) else "the gradient is not finite"

    def _in_units(self, T: Array, radius: float, w: Array, c: float) -> Array:
        """In the units of the data: rows of T over the powers of two, and the intercept's c = centre - shift·w."""
        d = len(w)
        rows = T[:d] / self.power[:, None]
        bounds = np.sqrt((rows**2).sum(1)) * radius
        if not self.problem.intercept:
            return np.append(bounds, 0.0) * SAFE
        row = T[d] - self.shift @ rows
        slack = _gamma(d + 4) * (np.abs(T[d]) + np.abs(self.shift) @ np.abs(rows))
        return np.append(bounds, np.linalg.norm(np.abs(row) + slack) * radius) * SAFE


def _exactly(c: float, shift: Array, w: Array) -> float:
    """c + shift·w, rounded once."""
    return float(Fraction(c) + sum((Fraction(a) * Fraction(b) for a, b in zip(shift, w, strict=True)), Fraction(0)))


def _summed(left: Array, right: Array) -> Array:
    """left^T right, over blocks of rows and then over blocks."""
    whole = len(left) // BLOCK * BLOCK
    found = left[whole:].T @ right[whole:]
    if whole:
        blocks = left[:whole].reshape(-1, BLOCK, left.shape[1]).transpose(0, 2, 1)
        found = found + np.matmul(blocks, right[:whole].reshape(-1, BLOCK, right.shape[1])).sum(0)
    return found
