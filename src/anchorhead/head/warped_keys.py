"""Keys whose resolution is proportional to the distance from a point: for functions that change fast near one end.

For a convex Φ let key k score the tangent of Φ at its anchor a_k, Φ(a_k) + Φ'(a_k)(u - a_k). That is Φ(u), which all
keys share, less the Bregman divergence between u and a_k: softmax prefers anchors near u, at a width of about
1/sqrt(Φ'') there. Φ = βu² gives the evenly spaced heads of `uniform_keys.py`, of the same width everywhere. Here

    Φ(u) = -A log(τ),   τ = p + (u - low),   anchors with τ_k in geometric progression,

so that the width grows in proportion to τ, as do the gaps between anchors. 1/x, log, square roots and x/(1 + x) near
a pole or a branch point just outside the domain become as easy as smooth functions are for evenly spaced keys: on
[0, 15], x/(1 + x) with 8 keys goes from 1e-3 to 2e-6. With `side=-1` the crowded end is the right one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anchorhead.arithmetic import Array, exp, exp_of, geometric, log, log_of
from anchorhead.descent import descend
from anchorhead.head.head import Head
from anchorhead.head.solve import Problem, costs, solve

Layout = tuple[float, float, float]
"""Sharpness, offset, overhang."""
MOVES = np.array([[0, 0, 0], [0.3, 0, 0], [0, 0.3, 0], [0, 0, 0.2]])
"""From the first point of a search to its others; sharpness and offset in the logarithms."""


def warped_keys(
    count: int, sharpness: float, offset: float, overhang: float, problem: Problem, side: int
) -> tuple[Array, Array]:
    """Slopes and intercepts: A = sharpness, p = offset; anchors reach past both ends by `overhang` of half the range of
    log τ."""
    low, high = float(problem.points[0]), float(problem.points[-1])
    start, end = log_of(offset), log_of(offset + high - low)
    middle, reach = (start + end) / 2, (end - start) / 2 * (1 + overhang)
    tau = exp(np.linspace(middle - reach, middle + reach, count))
    slopes = -sharpness / tau
    at_end = -sharpness * log(tau) + sharpness * (tau - offset) / tau
    if side > 0:
        intercepts = at_end - slopes * low
    else:
        intercepts, slopes = at_end + slopes * high, -slopes
    order = np.argsort(slopes, kind="stable")
    return slopes[order], intercepts[order] - intercepts.max()


def best_warped(count: int, problem: Problem, side: int) -> tuple[float, Head]:
    """The best head with that many keys that the search finds, and its largest error on the samples."""
    width = float(problem.points[-1] - problem.points[0])

    thin = problem.thinned()

    def layout(place: Array) -> Layout:
        sharpness, offset, overhang = place.tolist()
        return exp_of(sharpness), exp_of(offset), overhang

    def judged(places: Sequence[Array]) -> list[float]:
        """What the layout of each place costs."""
        layouts = [layout(place) for place in places]
        fair = [1e-3 < a < 1e4 and 1e-6 * width < p < 1e3 * width and -0.9 < o < 6 for a, p, o in layouts]
        keys = [warped_keys(count, *found, problem, side) for found, ok in zip(layouts, fair, strict=True) if ok]
        slopes, intercepts = np.array(keys).reshape(-1, 2, count).transpose(1, 0, 2)
        found = costs(slopes, intercepts, thin)
        return [next(found) if ok else math.inf for ok in fair]

    grid = [np.array([log_of(a), log_of(p * width), o])
            for a in (0.5, 2.0, 8.0) for p in geometric(0.003, 1.0, 6).tolist() for o in (-0.2, 0.2, 0.8)]  # fmt: skip
    _, first = min(zip(judged(grid), range(len(grid)), strict=True))
    ((_, best),) = descend(judged, [grid[first] + MOVES], 120)
    return solve(*warped_keys(count, *layout(best), problem, side), problem, horner=False, lawson=40)
