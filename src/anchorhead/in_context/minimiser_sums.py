"""Sums and inverses in floats, with what they may be off by: the arithmetic of bounds on a minimiser's distance.

Sums over n examples are taken over blocks of b = floor(sqrt n) rows, of which there are at most b + 2 and a rest, and
then over blocks, so that in any order of summation they err by γ_{2b + 3} of the sum of absolute values,
γ_k = k u/(1 - k u). Bounds are sums of positive numbers, and a relative `SAFE` covers their own roundings.

*A conditioner.* T is the inverse of H's Cholesky factor, as it was computed; nothing is assumed of it but that it is
regular, which m > 0 shows. |1 - T^T H T| is at most what is computed of it, and what rounding may have changed, in
Frobenius's norm; with m one less that, m <= T^T H T <= 2 - m.
"""

from __future__ import annotations

import math

import numpy as np

from anchorhead.in_context.minimiser_units import FLOOR, HUGE, Units

UNIT = 2.0**-53
SAFE = 1 + 1e-8
MOST_NAMED = 8
SHARE = 1e-3
"""Of the largest entry of a direction, for a column to be named."""
UNCURVED = {
    "logistic": "the classes can be separated",
    "classes": "the classes can be separated",
    "poisson": "expected counts vanish",
    "huber": "few residuals lie inside of the corner",
}
"""Where a loss has no curvature."""
Array = np.ndarray
Known = tuple[Array, float]
"""T and m."""


class Dependent(str):
    """Why there is no bound, where that is because columns are dependent, or nearly so."""

    __slots__ = ()


def gamma(count: float) -> float:
    """Of so many roundings in a row."""
    return count * UNIT / (1 - count * UNIT)


def sum_error(examples: int) -> float:
    """Of a sum over examples, of products with a few factors, relative to the sum of absolute values."""
    return gamma(2 * math.isqrt(examples) + 27)


def lengths(rows: Array) -> Array:
    """Euclidean lengths along the last dimension, of numbers that may be too small to square."""
    largest = np.abs(rows).max(-1, keepdims=True, initial=0.0)
    safe = np.where(largest > 0, largest, 1.0)
    found: Array = safe[..., 0] * np.sqrt(((rows / safe) ** 2).sum(-1)) * SAFE
    return found


def summed(left: Array, right: Array) -> Array:
    """left^T right, over blocks of rows and then over blocks."""
    block = math.isqrt(len(left))
    count = len(left) // block
    whole = count * block
    blocks = left[:whole].reshape(count, block, left.shape[1]).transpose(0, 2, 1)
    found: Array = np.matmul(blocks, right[:whole].reshape(count, block, right.shape[1])).sum(0)
    return found + left[whole:].T @ right[whole:]


def conditioner(H: Array, rounded: Array) -> Known | None:
    """T and m of a matrix whose entries are off by at most `rounded`; None where m is not positive."""
    try:
        T = np.linalg.solve(np.linalg.cholesky(H), np.eye(len(H))).T
    except np.linalg.LinAlgError:
        return None
    near = np.eye(len(H)) - T.T @ (H @ T)
    astray = np.abs(T.T) @ ((rounded + gamma(2 * len(H) + 6) * np.abs(H)) @ np.abs(T))
    least = 1 - float(np.linalg.norm(near) + np.linalg.norm(astray) * SAFE) - 1e-12
    return (T, least) if least > 0 and np.abs(T).max(initial=0.0) <= HUGE else None


def along(T: Array, gradient: Array, error: Array) -> float:
    """|T^T G| at most, for a gradient with its error."""
    parts = np.abs(T.T @ gradient) + gamma(len(T) + 2) * (np.abs(T.T) @ np.abs(gradient)) + np.abs(T.T) @ error
    return float(lengths(parts + FLOOR)) * SAFE


def reach(Z: Array, T: Array) -> float:
    """The largest |T^T z| of an example."""
    found = float(lengths(Z @ T).max()) * SAFE * (1 + gamma(2 * len(T) + 4))
    return found + gamma(len(T)) * float(lengths(np.abs(Z) @ np.abs(T)).max()) * SAFE + FLOOR


def fallen(radius: float, rate: float) -> float | str:
    """ρ where m(ρ) = m e^{-rate ρ} and radius = |T^T G|/m: e^{2 rate radius} of it, while that is at most two."""
    if not 2 * rate * radius <= math.log(2):
        return "the gradient is not small enough for the curvature near by to be known"
    return radius * math.exp(2 * rate * radius) * SAFE


def in_data_units(T: Array, radius: float, units: Units, unit: int) -> Array:
    """Bounds in the units of the data: the lengths of T's rows, and the intercept's c = centre - shift·w."""
    shift = units.shift
    d = len(shift)
    bounds = units.upwards(lengths(T[:d]) * radius * SAFE, unit)
    if not units.intercept:
        return np.append(bounds, 0.0)
    row = T[d] - shift @ T[:d]
    slack = gamma(d + 4) * (np.abs(T[d]) + np.abs(shift) @ np.abs(T[:d])) + FLOOR
    last = float(lengths(np.abs(row) + slack)) * radius * SAFE
    return np.append(bounds, np.nextafter(np.ldexp(last, unit), math.inf))


def flat(units: Units, columns: Array, loss: str) -> str:
    """Why there is no conditioner: dependent columns, which are named, or a loss that is hardly curved.

    columns: as the data number them.
    """
    Z, weights = units.Z, units.weights[:, None]
    moments = summed(Z, weights * Z)
    rounded = sum_error(len(Z)) * summed(np.abs(Z), weights * np.abs(Z)) * SAFE + FLOOR
    if loss in UNCURVED and conditioner(moments, rounded) is not None:
        return (
            f"the columns are independent, but the loss has so little curvature at these coefficients, as where "
            f"{UNCURVED[loss]}, that in float64 no eigenvalue of the Hessian is proved to be positive: the minimiser "
            "is not known to be one, and may be at infinity"
        )
    return Dependent(
        f"{_named(moments, columns)} linearly dependent, or so nearly that in float64 no eigenvalue of the Hessian "
        "is proved to be positive: the minimiser is not known to be one"
    )


def _named(H: Array, columns: Array) -> str:
    diagonal = np.sqrt(np.maximum(np.diag(H), 0.0))
    if not (np.isfinite(H).all() and (diagonal > 0).all()):
        return "the columns are"
    part = np.abs(np.linalg.eigh(H / diagonal[:, None] / diagonal)[1][: len(columns), 0])
    named = [str(j) for j in columns[part > SHARE * part.max(initial=0.0)]]
    if len(named) < 2:
        return "the columns are"
    most = named if len(named) <= MOST_NAMED else [*named[: MOST_NAMED - 1], f"{len(named) - MOST_NAMED + 1} others"]
    return f"columns {', '.join(most[:-1])} and {most[-1]} are"
