"""Keys with evenly spaced slopes and concave intercepts, and the search for the best of them.

Key k, counted from the middle, scores  step·k·(u - centre) - curvature·k². That is the paper's score
-β(u - L_k)² for anchors L_k = centre + k h, with step = 2βh and curvature = βh², but for the term that
all keys share. At the paper's β (curvature about 20) softmax picks one anchor. At a curvature of
0.05 to 2 neighbouring keys blend, and by Poisson summation the blends reproduce smooth functions with an
error that falls geometrically in the number of keys. (docs/mathematics.md 2.2, 2.3)

Two numbers decide how well: curvature, and the spacing h = 2 curvature/step in units of the domain. The error
has several valleys in them, so the search samples a grid and descends from the best points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from anchorhead.arithmetic import Array, exp_of, geometric, log_of
from anchorhead.descent import descend
from anchorhead.head.solve import AGAIN, Found, Keys, Problem, costs, solve

Layout = tuple[float, float]
"""Step and curvature."""
MOVES = np.array([[0.0, 0.0], [0.15, 0.0], [0.0, 0.25]])
"""From the first point of a search to its others, in the logarithms."""

NEAR = (1.0, 1.1, 1.22, 1.36, 1.52, 1.75, 2.1, 2.7)
"""Spacings, in units of the domain's length for each key."""
STEP_BITS = 12
"""Slopes are multiples of a step with this many bits, so that k·step is exact in every dtype."""


def uniform_keys(count: int, steps: Array, curvatures: Array, centre: float) -> Keys:
    """Several sets of keys, by their steps and curvatures."""
    if count > 2:
        mantissas, exponents = np.frexp(steps)
        steps = np.ldexp(np.rint(mantissas * 2**STEP_BITS), exponents - STEP_BITS)
    k = np.arange(count, dtype=np.float64) - (count - 1) / 2
    slopes = steps[:, None] * k
    spacing = np.maximum(2 * curvatures, 1e-3) / steps
    widths = np.broadcast_to(spacing[:, None], slopes.shape)
    return Keys(slopes, -curvatures[:, None] * (k * k) - slopes * centre, centre + k * widths, widths)


class Uniform:
    """Evenly spaced heads.

    rates: steps to try as they are. Where f approaches its asymptotes like exp(-rate·|u|), a head with that
    step does so too, and is far better than its neighbours.
    """

    def __init__(self, count: int, problem: Problem, rates: Iterable[float] = ()) -> None:
        self.count, self.problem, self.rates = count, problem, list(rates)
        self.thin = problem.thinned(count)
        self.likely: Sequence[int] | None = None
        """Which layouts of the coarse grid are looked at, where not all."""
        self.looked: list[tuple[float, int]] = []
        """What they cost, and which they are, cheapest first."""

    def judged(self, layouts: Sequence[Layout]) -> list[float]:
        """What each layout costs."""
        fair = [1e-12 < step * self.problem.radius < 1e9 and 0 <= c < 60 for step, c in layouts]
        steps, curvatures = np.array([pair for pair, ok in zip(layouts, fair, strict=True) if ok]).reshape(-1, 2).T
        found = costs(uniform_keys(self.count, steps, curvatures, self.problem.centre), self.thin)
        return [next(found) if ok else math.inf for ok in fair]

    def first(self) -> float:
        """What the best layout of a coarse grid costs."""
        return self.ranked()[0][0]

    def ranked(self) -> list[tuple[float, int]]:
        """What the layouts of a coarse grid cost, and which they are, cheapest first."""
        if not self.looked:
            grid = self._grid(coarse=True)
            likely = range(len(grid)) if self.likely is None else self.likely
            self.looked = sorted(zip(self.judged([grid[i] for i in likely]), likely, strict=True))
        return self.looked

    def _grid(self, *, coarse: bool) -> list[Layout]:
        """Layouts to begin with.

        Many keys on an interval without asymptotes are best a little wider apart than they need be to cover it, so
        that some lie outside, at curvatures below 2; other layouts have a wider choice.
        """
        pinned = self.problem.left is not None or self.problem.right is not None
        fine = 6 if coarse or self.count > 24 else 10
        wide = (geometric(0.1, 6.0, fine) * min(1, 4 / self.count), geometric(0.02, 4.0, fine))
        near = (np.array(NEAR[:: 2 if coarse else 1]) * (2 / self.count), geometric(0.15, 1.6, 5 if coarse else 7))
        choices = [wide] if pinned or self.count <= 6 else [near] if coarse else [wide, near]
        grid = [(2 * c / (h * self.problem.radius), c) for hs, cs in choices for h in hs.tolist() for c in cs.tolist()]
        return grid + [(rate, c) for rate in self.rates for c in (0.0, *wide[1].tolist())]

    def best(self, near: Array | None = None) -> Found:
        """The best head that the search finds, from the layout of a similar one where there is one.

        Of a layout the step for each key and the curvature are remembered, which hardly depend on how many keys it has.
        """
        if self.count == 1:
            one = Keys(*(np.array([[v]]) for v in (0.0, 0.0, self.problem.centre, self.problem.radius)))
            return Found(*solve(one, self.problem, horner=True), None)
        few = self.count <= 24
        if near is None:
            grid = self._grid(coarse=False)
            starts = [layout for _, layout in sorted(zip(self.judged(grid), grid, strict=True))[: 2 if few else 1]]
            found = self._descended(starts, MOVES, 60 if few else 30)
        else:
            found = self._descended([(float(near[0]) * self.count, float(near[1]))], MOVES / 2, AGAIN)
        for rate in self.rates:
            tried = [(rate, c) for c in (0.0, *geometric(1e-3, 3.0, 20).tolist())]
            cost, layout = min(zip(self.judged(tried), tried, strict=True))
            found.append((cost, layout))
            if layout[1] and math.isfinite(cost):
                found += [(value, (rate, c)) for value, (_, c) in self._descended([layout], MOVES[[0, 2]], 30)]
        _, (step, curvature) = min(found)
        keys = uniform_keys(self.count, np.array([step]), np.array([curvature]), self.problem.centre)
        return Found(*solve(keys, self.problem, horner=True), np.array([step / self.count, curvature]))

    def _descended(self, starts: Sequence[Layout], moves: Array, tries: int) -> list[tuple[float, Layout]]:
        """Nelder-Mead in the logarithms of step and curvature."""

        def layout(place: Array) -> Layout:
            step, curvature = place.tolist()
            return exp_of(step), exp_of(curvature)

        simplices = [np.array([log_of(step), log_of(max(c, 1e-3))]) + moves for step, c in starts]
        found = descend(lambda places: self.judged([layout(p) for p in places]), simplices, tries)
        return [(value, layout(place)) for value, place in found]
