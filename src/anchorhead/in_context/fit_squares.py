"""Least squares and ridge regression by `newton_descent`: one network, whose inverse is made once and used three times.

*Which columns.* Columns are scaled to variance one, and the penalty with them; those that the penalty outweighs are
smaller, so that the Hessian is as well conditioned as the columns are. Steps start at zero, and the inverse takes as
many steps as the least eigenvalue needs that is not zero. Where columns are linearly dependent there are many
minimisers, and scikit-learn's is the shortest in the original columns: `fit_shortest.py` goes there.

*More columns than examples.* With w = mean of β_i x_i the same objective is one of β: (X X^T/n + l2)β = y. The network
is given X^T for its examples, and y through `tilt`; the mean is one more head. So w lies in the span of the examples,
and is the shortest if all columns are divided by one number. That square has the square of X's condition: predictions X
X^T β would lose twice as many digits as X w, so that what w leaves of the labels is fitted again, and added.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from anchorhead.errors import InputError
from anchorhead.in_context.bounds import OutsideBoundsError
from anchorhead.in_context.fit import (
    NEGLIGIBLE,
    Report,
    Scaled,
    Solved,
    centred_labels,
    inversions,
    largest,
    least_eigenvalue,
    power,
    scaled,
)
from anchorhead.in_context.fit_shortest import shortest
from anchorhead.in_context.heads import Factor
from anchorhead.in_context.newton_descent import newton_descent
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.replay import Run, given

STEPS = 3
RUNS = 4
PASSES = 4
SMALL = 1e-13
"""A gradient, over the first, that is rounding."""
WIDENINGS = 8


def fit_squares(X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None, alpha: float, intercept: bool,
                tol: float, report: Report) -> tuple[np.ndarray, np.ndarray, Solved]:  # fmt: skip
    """Coefficients (targets, d) and intercepts (targets,) for labels Y (targets, n), and how they were found."""
    total = len(X) if weights is None else float(weights.sum())
    labels = centred_labels(Y, weights, intercept)
    y, l2 = torch.tensor(labels.y), alpha / total
    dual = X.shape[1] > len(X)
    data = scaled(X, weights, centre=intercept, alike=dual)
    varied = (data.X != 0).any(0).numpy()
    if varied.any() and not varied.all():  # the coefficient of a constant column is zero
        found, intercepts, solved = fit_squares(X[:, varied], Y, weights, alpha, intercept, tol, report)
        coefficients = np.zeros((len(Y), X.shape[1]))
        coefficients[:, varied] = found
        return coefficients, intercepts, solved._replace(run=solved.run.among(np.flatnonzero(varied), X.shape[1]))
    if dual:
        data = data.eased(l2)
        solved = _by_examples(data, y, data.penalties(l2, 2)[0], tol, report)
    else:
        data, penalties, moments, least, rank = _conditioned(data, l2)
        solved = solve_squares(data.X, y, data.shares, penalties, float(moments.trace()), least, tol, report)
        if rank < len(moments):
            solved = _shortest(data, solved, tol, report)
    coefficients = data.coefficients(solved.w, labels.size[:, None])
    coefficients[~labels.y.any(1)] = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # what floats do not hold is refused once all is known
        intercepts = labels.middle - coefficients @ data.mean
    return coefficients, intercepts, data.told(solved, labels.middle, labels.size)


def _conditioned(data: Scaled, l2: float) -> tuple[Scaled, list[float], Tensor, float, int]:
    """Columns of like curvatures, their penalties and moments, and the Hessian's least eigenvalue and rank."""
    data = data.eased(l2)
    penalties, moments = data.penalties(l2, 2), data.moments()
    least, rank = least_eigenvalue(moments + torch.diag(torch.tensor(penalties, dtype=torch.float64)))
    return data, penalties, moments, least, rank


def solve_squares(X: Tensor, y: Tensor, shares: Tensor | None, l2: list[float], trace: float, least: float, tol: float,
           report: Report, tilt: Tensor | None = None) -> Solved:  # fmt: skip
    """Runs the network until the gradient, relative to its first size, is small or no longer falls."""
    n, d = X.shape
    curvature = trace * (1 + 1e-6) + 1e-12
    wide = power(2 * (1 + largest(y) + (0 if tilt is None else largest(tilt))) / math.sqrt(least))
    bounds = {"x": power(largest(X)), "y": power(max(largest(y), 1.0)), "w": max(wide, 4.0), "curvature": curvature,
              "s": power(4 * max(largest(y), 1.0))}  # fmt: skip
    w, best = torch.zeros(*y.shape[:-1], d, dtype=torch.float64), math.inf
    steps, found, kept = 0, w, None
    first = largest(_gradient(X, y, shares, l2, w, tilt)) or 1.0
    for run in range(RUNS + WIDENINGS):
        report(f"least squares: {n:,} examples, {d:,} columns, run {run + 1}")
        bounds["s"] = min(bounds["s"], power(d * bounds["x"] * bounds["w"]))
        network = newton_descent("squared", features=d, examples=n, steps=STEPS, l2=l2, bounds=bounds,
                                 inversions=inversions(curvature + max(l2), least))  # fmt: skip
        try:
            run_now = Run(network, given(X, y, w, shares, tilt))
            w, steps = network(X, y, w, shares, tilt), steps + STEPS
        except OutsideBoundsError:
            bounds |= {"w": 8 * bounds["w"], "s": 8 * bounds["s"]}
            continue
        left = largest(_gradient(X, y, shares, l2, w, tilt)) / first
        done = left <= SMALL or left > best / 4
        if left < best:
            best, found, kept = left, w, run_now
        if done or steps >= RUNS * STEPS:
            break
    if kept is None:
        raise InputError("The coefficients grow without bound on these data; leave out columns, or use Ridge.")
    return Solved(found, kept, steps, best <= max(tol, 1e-10))


def _gradient(X: Tensor, y: Tensor, shares: Tensor | None, l2: list[float], w: Tensor, tilt: Tensor | None) -> Tensor:
    residual = w @ X.mT - y
    weighted = residual / len(X) if shares is None else residual * shares
    found = weighted @ X + torch.tensor(l2, dtype=torch.float64) * w
    return found if tilt is None else found + tilt


def _shortest(data: Scaled, solved: Solved, tol: float, report: Report) -> Solved:
    """See `fit_shortest.py`."""

    def solve(X: Tensor, Y: Tensor, shares: Tensor | None, trace: float, least: float) -> Tensor:
        return solve_squares(X, Y, shares, [0.0] * X.shape[1], trace, least, tol, report).w

    found = shortest(data.X, solved.w, torch.tensor(data.scale), data.shares, solve)
    return solved._replace(w=found, run=replace(solved.run, shift=found - solved.w))


def _by_examples(data: Scaled, y: Tensor, l2: float, tol: float, report: Report) -> Solved:
    """Through β; see the top. Weights become the examples' lengths."""
    X = data.X if data.shares is None else data.X * (data.shares * len(data.X)).sqrt().unsqueeze(-1)
    y = y if data.shares is None else y * (data.shares * len(data.X)).sqrt()
    n, d = X.shape
    flat = X.mT * math.sqrt(d / n)
    moments = X @ X.mT / n + l2 * torch.eye(n, dtype=torch.float64)
    least, _ = least_eigenvalue(moments)
    zero = torch.zeros(*y.shape[:-1], d, dtype=torch.float64)
    if l2 <= NEGLIGIBLE * float(moments.trace()):
        l2 = 0.0
    w, weights, best, found = zero, torch.zeros_like(y), math.inf, list[Solved]()
    first = largest(_gradient(X, y, None, [l2] * d, w, None)) or 1.0
    for _ in range(PASSES):
        tilt = w @ X.mT + l2 * weights - y
        solved = solve_squares(flat, zero, None, [l2] * n, float(moments.trace()), least, tol, report, tilt)
        head = Factor(power(largest(solved.w)))
        ahead = w + torch.stack([Reading().gather(head, (one,), X / n) for one in solved.w])
        size = largest(_gradient(X, y, None, [l2] * d, ahead, None)) / first
        if found and not size < best / 2:
            break
        run, steps = replace(solved.run, dual=True, shift=w), solved.steps + sum(part.steps for part in found[-1:])
        found.append(Solved(ahead, run, steps, solved.converged or size <= max(tol, 1e-10)))
        w, weights, best = ahead, weights + solved.w, size
        if not size > SMALL:
            break
    return found[-1]
