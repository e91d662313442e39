"""The lasso by `shrinkage`, and at the end by Newton's steps on the columns that it kept.

Splitting finds which coefficients are zero and the signs of the others long before it has their digits. On those
columns the penalty is linear, and the minimiser is one of least squares with a tilt, which `newton_descent` solves; it
is taken if the least subgradient of the whole objective there is as small as asked for. Else splitting goes on, with
four times as many steps. Zeros for all are tried as well: from some penalty on they are the minimiser.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anchorhead.errors import InputError
from anchorhead.in_context.bounds import OutsideBoundsError
from anchorhead.in_context.fit import Report, Scaled, Solved, inversions, largest, least_eigenvalue, power
from anchorhead.in_context.fit_squares import solve_squares
from anchorhead.in_context.replay import Run, given
from anchorhead.in_context.shrinkage import shrinkage

FIRST = 100
GROWTH = 4
EXACTER = 2
"""Steps more for the inverse, since splitting ends where the inverse says: e^-32 is left of its error."""
ZERO = 1e-8
"""Coefficients below this share of the largest are tried as zeros."""
LARGE = 2.0
"""A penalty that keeps a coefficient at zero: a gradient of columns of variance one is at most the root of the mean
squared residual, which at a minimiser is at most that of the labels, which are at most one."""


def subgradient(data: Scaled, y: Tensor, l1: Tensor, w: Tensor) -> Tensor:
    """The least subgradient of the objective, plainly."""
    residual = data.X @ w - y
    gradient = (residual / len(y) if data.shares is None else residual * data.shares) @ data.X
    free = gradient.sign() * (gradient.abs() - l1).clamp(min=0)
    return torch.where(w == 0, free, gradient + l1 * w.sign())


def fit_lasso(data: Scaled, y: Tensor, l1: list[float], tol: float, most: int, report: Report) -> Solved:
    """Mean squared error/2 and l1·|w|, on centred columns and labels."""
    penalty = torch.tensor(l1, dtype=torch.float64)
    zero = torch.zeros(data.X.shape[1], dtype=torch.float64)
    moments = data.moments()
    first = largest(subgradient(data, y, 0 * penalty, zero)) or 1.0
    least, _ = least_eigenvalue(moments)
    top = float(moments.trace()) * (1 + 1e-6) + 1e-12
    pull = max(math.sqrt(max(least, 1e-8 * top) * top), 1e-6 * top)
    u, best, left, steps, count = zero, zero, math.inf, 0, FIRST
    while True:
        report(f"lasso: {steps:,} steps, subgradient {left / first:.1e}")
        run, found = _split(data, y, l1, top, pull, min(count, max(most - steps, 1)), u)
        steps, (z, u) = steps + run.network.steps, found
        z = torch.where(z.abs() > ZERO * largest(z), z, 0.0)
        for tried in (zero, z, _on_kept(data, y, penalty, z, moments, report)):
            size = largest(subgradient(data, y, penalty, tried)) if tried is not None else math.inf
            if tried is not None and size < left:
                best, left = tried, size
        if left <= tol * first or steps >= most:
            return Solved(best, run, steps, left <= tol * first)
        count *= GROWTH


def _split(data: Scaled, y: Tensor, l1: list[float], top: float, pull: float, steps: int,
           u: Tensor) -> tuple[Run, Tensor]:  # fmt: skip
    n, d = data.X.shape
    wide, depth = power(64 * (1 + largest(y)) + 4 * largest(u)), inversions(top + pull, pull) + EXACTER
    for _ in range(12):
        bounds = {"x": power(largest(data.X)), "y": power(max(largest(y), 1.0)), "w": wide, "curvature": top}
        network = shrinkage(features=d, examples=n, steps=steps, inversions=depth, pull=pull,
                            l1=l1, bounds=bounds)  # fmt: skip
        try:
            return Run(network, given(data.X, y, u, data.shares)), network(data.X, y, u, data.shares)
        except OutsideBoundsError:
            wide *= 64
    raise InputError("The coefficients grow without bound on these data; use a larger penalty.")


def _on_kept(data: Scaled, y: Tensor, l1: Tensor, z: Tensor, moments: Tensor, report: Report) -> Tensor | None:
    """The minimiser on the columns where z is not zero, with its signs; None where that changes a sign."""
    kept = z.nonzero().flatten()
    if not 0 < len(kept) <= len(y):
        return None
    own = moments[kept][:, kept]
    least, rank = least_eigenvalue(own)
    if rank < len(kept):
        return None
    signs = z[kept].sign()
    solved = solve_squares(data.X[:, kept], y, data.shares, [0.0] * len(kept), float(own.trace()), least, 1e-10, report,
                           l1[kept] * signs)  # fmt: skip
    if not bool((solved.w.sign() == signs).all()):
        return None
    whole = torch.zeros_like(z)
    whole[kept] = solved.w
    return whole
