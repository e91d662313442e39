"""Least squares and ridge regression by `newton_descent`: one network, whose inverse is made once and used three times.

*Which columns.* Columns are scaled to variance one, and the penalty with them; those that the penalty outweighs are
smaller, so that the Hessian is as well conditioned as the columns are. Steps start at zero, and the inverse takes as
many steps as the least eigenvalue needs. Where columns are linearly dependent, or so nearly that the moments lose it,
the network is given an orthonormal basis of them (`fit_basis.py`). Of dependent columns there are many minimisers, and
scikit-learn's is the shortest in the original columns: `fit_shortest.py` goes there. Where the objective would rise by
that step, coefficients of the null space are too large for it: then it is not taken, which estimators warn of.

*More columns than examples.* Without a penalty, and in units that are far apart, all of the above. Else let w be the
mean of β_i x_i, of which the same objective is (X X^T/n + l2)β = y. The network is given X^T for its examples, and y
through `tilt`; the mean is one more head. So w lies in the span of the examples, and is the shortest if all columns are
divided by one number. That square has the square of X's condition: predictions X X^T β would lose twice as many digits
as X w, so that what w leaves of the labels is fitted again, and added.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from anchorhead.errors import ToleranceError
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
from anchorhead.in_context.fit_basis import LOST, basis_of
from anchorhead.in_context.fit_shortest import shortest
from anchorhead.in_context.heads import Factor
from anchorhead.in_context.newton_descent import newton_descent
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.replay import Run, given

STEPS = 3
RUNS = 4
FITTED = 2
PASSES = 4
SMALL = 1e-13
"""A gradient, over the first, that is rounding."""
WIDENINGS = 8
FAR = 2.0**8
"""Units of columns further apart than this do not share one size."""
RISEN = 2.0**-26
"""What a step between minimisers may make of predictions, over the labels: its square, by which the objective rises, is
rounding."""
ILL = 2.0**-32
"""Eigenvalues of moments below this share of their trace have lost digits that columns have."""


def fit_squares(X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None, alpha: float, intercept: bool,
                tol: float, report: Report) -> tuple[np.ndarray, np.ndarray, Solved]:  # fmt: skip
    """Coefficients (targets, d) and intercepts (targets,) for labels Y (targets, n), and how they were found."""
    total = len(X) if weights is None else float(weights.sum())
    labels = centred_labels(Y, weights, intercept)
    y, l2 = torch.tensor(labels.y), alpha / total
    data = scaled(X, weights, centre=intercept).eased(l2)
    varied = (data.X != 0).any(0).numpy()
    if varied.any() and not varied.all():  # the coefficient of a constant column is zero
        found, intercepts, solved = fit_squares(X[:, varied], Y, weights, alpha, intercept, tol, report)
        coefficients = np.zeros((len(Y), X.shape[1]))
        coefficients[:, varied] = found
        return coefficients, intercepts, solved._replace(run=solved.run.among(np.flatnonzero(varied), X.shape[1]))
    wide = X.shape[1] > len(X)
    dual = wide and bool(l2 or data.scale.max() <= FAR * data.scale.min())
    if dual:
        data = scaled(X, weights, centre=intercept, alike=True).eased(l2)
    penalties, plain = data.penalties(l2, 2), None
    if dual:
        plain = _by_examples(data, y, penalties[0], tol, report)
    elif not wide:
        plain = _by_columns(data, y, penalties, tol, report)
    solved = plain if plain is not None and plain.converged else in_basis(data, y, penalties, tol, report)
    coefficients = data.coefficients(solved.w, labels.size[:, None])
    coefficients[~labels.y.any(1)] = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # what floats do not hold is refused once all is known
        intercepts = labels.middle - coefficients @ data.mean
    return coefficients, intercepts, data.told(solved, labels.middle, labels.size)


def _by_columns(data: Scaled, y: Tensor, l2: list[float], tol: float, report: Report) -> Solved | None:
    """On the columns as they are; None where they are dependent, or nearly so."""
    moments = data.moments()
    least, rank = least_eigenvalue(moments + torch.diag(torch.tensor(l2, dtype=torch.float64)))
    if rank < len(moments) or least < ILL * float(moments.trace()):
        return None
    return solve_squares(data.X, y, data.shares, l2, float(moments.trace()), least, tol, report)


def in_basis(data: Scaled, y: Tensor, l2: list[float], tol: float, report: Report,
             tilt: Tensor | None = None) -> Solved:  # fmt: skip
    """In an orthonormal basis of the columns, and the shortest of the original ones where that has fewer.

    What is left of the labels is fitted again, over its size, since errors of heads are shares of labels."""
    basis = basis_of(data, l2)
    moved = None if tilt is None else basis.tilt(tilt)

    def solve(X: Tensor, y: Tensor, tilt: Tensor | None = None) -> Solved:
        found = solve_squares(X, y, None, [0.0] * X.shape[1], float(X.shape[1]), 0.5, tol, report, tilt)
        if found is None:
            raise ToleranceError("Rounding in float64 hides the coefficients on these data; leave out columns.")
        return found

    left, steps, converged = basis.labels(y), 0, False
    w, first = torch.zeros(*y.shape[:-1], data.X.shape[1], dtype=torch.float64), largest(left)
    for _ in range(FITTED if tilt is None and first else 1):
        size = (largest(left) or 1.0) if tilt is None else 1.0
        solved = solve(basis.X, left / size, moved)
        made = solved.w @ (basis.back * size)
        run, steps = replace(solved.run, turn=basis.back * size, shift=w), steps + solved.steps
        converged = converged or solved.converged
        w, left = w + made, left - size * solved.w @ basis.X.mT
    known = True
    if len(basis.back) < data.X.shape[1] and (data.scale != data.scale[0]).any():
        short = shortest(basis.span, basis.blur, data.scale)
        ahead = short(w)
        moved, allowed = (part.norm(dim=-1) for part in (basis.labels((ahead - w) @ data.X.mT), basis.labels(y)))
        known = bool((moved <= RISEN * allowed + LOST * w.abs().sum(-1) * len(y.mT) ** 0.5).all())
        w, run = (ahead, replace(run, short=short)) if known else (w, run)
    return Solved(w, run, steps, converged, basis.blurred, known)


def solve_squares(X: Tensor, y: Tensor, shares: Tensor | None, l2: list[float], trace: float, least: float, tol: float,
           report: Report, tilt: Tensor | None = None) -> Solved | None:  # fmt: skip
    """Runs the network until the gradient, relative to its first size, is small or no longer falls; None where
    coefficients leave all bounds."""
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
    return None if kept is None else Solved(found, kept, steps, best <= max(tol, 1e-10))


def _gradient(X: Tensor, y: Tensor, shares: Tensor | None, l2: list[float], w: Tensor, tilt: Tensor | None) -> Tensor:
    residual = w @ X.mT - y
    weighted = residual / len(X) if shares is None else residual * shares
    found = weighted @ X + torch.tensor(l2, dtype=torch.float64) * w
    return found if tilt is None else found + tilt


def _by_examples(data: Scaled, y: Tensor, l2: float, tol: float, report: Report) -> Solved | None:
    """Through β; see the top. Weights become the examples' lengths. None where examples are dependent, or nearly so, by
    more than that centred ones sum to zero."""
    X = data.X if data.shares is None else data.X * (data.shares * len(data.X)).sqrt().unsqueeze(-1)
    y = y if data.shares is None else y * (data.shares * len(data.X)).sqrt()
    n, d = X.shape
    flat = X.mT * math.sqrt(d / n)
    moments = X @ X.mT / n + l2 * torch.eye(n, dtype=torch.float64)
    least, _ = least_eigenvalue(moments)
    if (torch.linalg.eigvalsh(moments)[1:] < ILL * moments.trace()).any():
        return None
    zero = torch.zeros(*y.shape[:-1], d, dtype=torch.float64)
    if l2 <= NEGLIGIBLE * float(moments.trace()):
        l2 = 0.0
    w, weights, best, found = zero, torch.zeros_like(y), math.inf, list[Solved]()
    first = largest(_gradient(X, y, None, [l2] * d, w, None)) or 1.0
    for _ in range(PASSES):
        tilt = w @ X.mT + l2 * weights - y
        solved = solve_squares(flat, zero, None, [l2] * n, float(moments.trace()), least, tol, report, tilt)
        if solved is None:
            return None
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
