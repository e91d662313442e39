"""Keys whose resolution is proportional to the distance from a point: for functions that change fast near one end.

For a convex Φ let key k score the tangent of Φ at its anchor a_k, Φ(a_k) + Φ'(a_k)(u - a_k). That is Φ(u), which all
keys share, less the Bregman divergence between u and a_k: softmax prefers anchors near u, at a width of about
1/sqrt(Φ'') there. Φ = βu² gives the evenly spaced heads of `uniform.py`, of the same width everywhere. Here

    Φ(u) = -A log(τ),   τ = p + (u - low),   anchors with τ_k in geometric progression,

so that the width grows in proportion to τ, as do the gaps between anchors. 1/x, log, square roots and x/(1 + x) near
a pole or a branch point just outside the domain become as easy as smooth functions are for evenly spaced keys: on
[0, 15], x/(1 + x) with 8 keys goes from 1e-3 to 2e-6. With `side=-1` the crowded end is the right one.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize

from anchorhead.heads.fitting import Problem, solve
from anchorhead.heads.head import Array, Head


def warped_keys(count: int, sharpness: float, offset: float, overhang: float, problem: Problem, side: int) -> Head:
    """Keys only: A = sharpness, p = offset; anchors reach past both ends by `overhang` of half the range of log τ."""
    low, high = float(problem.points[0]), float(problem.points[-1])
    start, end = math.log(offset), math.log(offset + high - low)
    middle, reach = (start + end) / 2, (end - start) / 2 * (1 + overhang)
    tau = np.exp(np.linspace(middle - reach, middle + reach, count))
    slopes = -sharpness / tau
    levels = -sharpness * np.log(tau) + sharpness * (tau - offset) / tau
    if side > 0:
        intercepts = levels - slopes * low
    else:
        intercepts, slopes = levels + slopes * high, -slopes
    order = np.argsort(slopes)
    nothing = np.zeros(count)
    return Head(slopes[order], intercepts[order] - intercepts.max(), nothing, nothing, uniform=False)


def best_warped(count: int, problem: Problem, side: int) -> tuple[float, Head]:
    """The best head with that many keys that the search finds, and its largest error on the samples."""
    width = float(problem.points[-1] - problem.points[0])

    def objective(parameters: Array, on: Problem = problem) -> float:
        sharpness, offset, overhang = math.exp(parameters[0]), math.exp(parameters[1]), float(parameters[2])
        if not (1e-3 < sharpness < 1e4 and 1e-6 * width < offset < 1e3 * width and -0.9 < overhang < 6):
            return math.inf
        error, head = solve(warped_keys(count, sharpness, offset, overhang, problem, side), on)
        excess = max(1.0, head.largest_value / problem.limit)
        return math.log(error + problem.goal * 1e-3) + 2 * math.log(excess)

    thin = problem.thinned()
    grid = [np.array([math.log(a), math.log(p * width), o])
            for a in (0.5, 2.0, 8.0) for p in np.geomspace(0.003, 1, 6) for o in (-0.2, 0.2, 0.8)]  # fmt: skip
    start = min(grid, key=lambda g: objective(g, thin))
    simplex = start + np.array([[0, 0, 0], [0.3, 0, 0], [0, 0.3, 0], [0, 0, 0.2]])
    found = minimize(objective, start, method="Nelder-Mead", options={"maxfev": 120, "initial_simplex": simplex})
    best = found.x if found.fun < objective(start) else start
    keys = warped_keys(count, math.exp(best[0]), math.exp(best[1]), float(best[2]), problem, side)
    return solve(keys, problem, lawson=40)
