"""Keys with evenly spaced slopes and concave intercepts, and the search for the best of them.

Key k, counted from the middle, scores  step·k·(u - centre) - curvature·k². That is the paper's score
-β(u - L_k)² for anchors L_k = centre + k h, with step = 2βh and curvature = βh², but for the term that
all keys share. At the paper's temperature (curvature about 20) softmax picks one anchor. At a curvature of
0.05 to 2 neighbouring keys blend, and by Poisson summation the blends reproduce smooth functions with an
error that falls geometrically in the number of keys. (constructions 2.1, 2.2)

Two numbers decide how well: curvature, and the spacing h = 2 curvature/step in units of the domain. The error
has several valleys in them, so the search samples a grid and descends from the best points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy.optimize import minimize

from anchorhead.heads.fitting import Problem, solve
from anchorhead.heads.head import Head

Objective = Callable[[float, float], float]
Start = tuple[float, float, float]
"""Objective, step, curvature."""

STEP_BITS = 12
"""Slopes are multiples of a step with this many bits, so that k·step is exact in every dtype."""


def uniform_keys(count: int, step: float, curvature: float, centre: float) -> Head:
    """Keys only, values zero."""
    if count > 2:
        step = _short(step)
    k = np.arange(count, dtype=np.float64) - (count - 1) / 2
    slopes = step * k
    nothing = np.zeros(count)
    return Head(slopes, -curvature * k**2 - slopes * centre, nothing, nothing, uniform=True)


def _short(step: float) -> float:
    mantissa, exponent = math.frexp(step)
    return math.ldexp(round(mantissa * 2**STEP_BITS), exponent - STEP_BITS)


def best_uniform(count: int, problem: Problem, rates: Iterable[float] = ()) -> tuple[float, Head]:
    """The best head with that many keys that the search finds, and its largest error on the samples.

    rates: steps to try as they are. Where f approaches its asymptotes like exp(-rate·|u|), a head with that
    step does so too, and is far better than its neighbours.
    """
    centre, radius = problem.centre, problem.radius
    if count == 1:
        return solve(uniform_keys(1, 1.0, 0.0, 0.0), problem, lawson=30)

    def objective(step: float, curvature: float, on: Problem = problem) -> float:
        if not (1e-12 < step * radius < 1e9 and 0 <= curvature < 60):
            return math.inf
        error, head = solve(uniform_keys(count, step, curvature, centre), on)
        excess = max(1.0, head.largest_value / problem.limit)
        return math.log(error + problem.goal * 1e-3) + 2 * math.log(excess)

    fine = 10 if count <= 24 else 6
    spacings = np.geomspace(0.1, 6, fine) * min(1, 4 / count)
    grid = [(2 * c / (h * radius), c) for h in spacings for c in np.geomspace(0.02, 4, fine)]
    thin = problem.thinned()
    starts = sorted((objective(step, c, thin), step, c) for step, c in grid)[: 2 if count <= 24 else 1]
    found = [_descend(objective, start, 60 if count <= 24 else 30) for start in starts]
    for rate in rates:
        start = min((objective(rate, c, thin), rate, c) for c in (0.0, *np.geomspace(1e-3, 3, 20)))
        found.append(_descend_curvature(objective, start))
    _, step, curvature = min(found)
    return solve(uniform_keys(count, step, curvature, centre), problem, lawson=40)


def _descend(objective: Objective, start: Start, steps: int) -> Start:
    """Nelder-Mead in the logarithms of step and curvature."""
    value, step, curvature = start
    x, y = math.log(step), math.log(curvature)
    simplex = np.array([[x, y], [x + 0.15, y], [x, y + 0.25]])
    result = minimize(lambda p: objective(math.exp(p[0]), math.exp(p[1])), simplex[0], method="Nelder-Mead",
                      options={"maxfev": steps, "initial_simplex": simplex})  # fmt: skip
    return (result.fun, *(math.exp(v) for v in result.x)) if result.fun < value else start


def _descend_curvature(objective: Objective, start: Start) -> Start:
    """The same in curvature alone."""
    value, step, curvature = start
    if curvature == 0 or not math.isfinite(value):
        return start
    result = minimize(lambda p: objective(step, math.exp(p[0])), [math.log(curvature)], method="Nelder-Mead",
                      options={"maxfev": 30})  # fmt: skip
    return (result.fun, step, math.exp(result.x[0])) if result.fun < value else start
