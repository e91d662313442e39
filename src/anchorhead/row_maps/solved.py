"""Values solved for under a row map: the keys are given, weights are functions of each score by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from anchorhead.arithmetic import Array
from anchorhead.head.head import Head
from anchorhead.head.solve import Problem, minimax, sample_count, samples
from anchorhead.linear_algebra import least_squares

Layout = tuple[Sequence[float], Sequence[float]]
"""Slopes and intercepts."""
STEPS = 40


def best_values(f: Callable[[Array], Array], low: float, high: float, layouts: Sequence[Layout],
                weight: Callable[[Array], Array], goal: float, limit: float) -> Head:  # fmt: skip
    """The head of the layout that least squares like best, with the values of the smallest largest error."""
    slopes, _ = layouts[0]
    u = samples(low, high, sample_count(len(slopes)), np.zeros(0), flat_ends=False)
    problem = Problem(u, f(u), None, None, False, max(goal, 1e-15), limit, (low + high) / 2)
    thin = problem.thinned(len(slopes))
    costs = [_error(_design(layout, thin.points, weight), thin) for layout in layouts]
    best = layouts[int(np.argmin(costs))]
    values = minimax(_design(best, u, weight), problem.target, problem, STEPS)
    return Head.of(slopes=best[0], intercepts=best[1], constants=values, horner=False)


def _design(layout: Layout, u: Array, weight: Callable[[Array], Array]) -> Array:
    slopes, intercepts = (np.array(part)[:, None] for part in layout)
    return weight(slopes * u + intercepts)


def _error(design: Array, problem: Problem) -> float:
    ridge = max(problem.goal / (10 * problem.limit), 4e-16) * np.sqrt(len(problem.points)) * np.ones(len(design))
    found = least_squares(design, problem.target[None], ridge)[..., 0]
    return float(np.abs(problem.target - np.add.reduce(design * found[:, None], 0)).max())
