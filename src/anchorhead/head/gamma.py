"""Gamma heads: keys in geometric progression, for functions that go like powers over many decades
(docs/mathematics.md 2.10).

Key k has the anchor t_k > 0, t_k in geometric progression, and the rate r_k = 1/t_k; it scores  A log r_k - r_k u.
At a given u that is largest for the key with r_k = A/u, and all depends on u/t_k alone: what a head does at u it does
at any other scale. For u^(-p) with values proportional to r_k^p it is the trapezoid rule, of step
d = log(t_(k+1)/t_k) in log r, for

    u^(-p) = Γ(A)/Γ(A + p) · ∫ r^(A+p) e^(-ru) dr/r  /  ∫ r^A e^(-ru) dr/r

whose integrands are analytic in log r, with transforms Γ(A + p + iy) and Γ(A + iy). By Poisson summation its relative
ripple is about 2(|Γ(A+p+2πi/d)|/Γ(A+p) + |Γ(A+2πi/d)|/Γ(A)), which falls like e^(-π²/d): geometrically in the number of
keys for each decade. At the ends, where keys are missing, values that are solved for make up for them; the limit on
what a value brings to the sum (`solve.py`) keeps them near r_k^p, so that float32 can sum them.

A, and how far anchors go past each end of the domain, decide how well; they are searched for. Values may be affine in
u, which saves a tenth of the keys, or constants, which can carry a partner. On a negative domain all is mirrored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anchorhead.arithmetic import Array, decades, exp, exp_of, log_of
from anchorhead.descent import descend
from anchorhead.head.head import Head
from anchorhead.head.solve import MANY, Function, Keys, Problem, costs, solve

Layout = tuple[float, float, float]
"""A, and how many steps anchors go past the lower and the upper end."""
MOVES = np.array([[0, 0, 0], [0.25, 0, 0], [0, 1, 0], [0, 0, -1]])
"""From the first point of a search to its others; A in the logarithm."""
SHARPNESSES = (0.1, 0.3, 1.0, 3.0)
PAST = ((0.0, 0.0), (2.0, 1.0), (4.0, 1.0), (4.0, 4.0), (7.0, 1.0))


class Gamma:
    """Gamma heads of one size."""

    def __init__(self, count: int, problem: Problem) -> None:
        self.count, self.problem = count, problem
        self.thin = problem.thinned(min(count, MANY))
        sizes = np.abs(problem.points[[0, -1]])
        self.low, self.high = log_of(float(sizes.min())), log_of(float(sizes.max()))
        self.sign = 1.0 if problem.points[0] > 0 else -1.0

    def keys(self, layout: Layout) -> Keys:
        """One set of keys, slopes increasing."""
        sharpness, before, after = layout
        step = (self.high - self.low) / max(self.count - 1 - before - after, 1.0)
        places = self.low + step * (np.arange(self.count, dtype=np.float64) - before)
        with np.errstate(all="ignore"):  # what leaves the floats is not fair
            anchors = exp(places)
            slopes, intercepts = -self.sign / anchors, -sharpness * (places - (self.low + self.high) / 2)
        found = slopes, intercepts, self.sign * anchors, anchors
        return Keys(*(part[None, :: int(self.sign)] for part in found))

    def judged(self, spots: Sequence[Array]) -> list[float]:
        """What the layout of each point of the search costs."""
        layouts = [self._layout(spot) for spot in spots]
        made = [self.keys(layout) for layout in layouts]
        fair = [1e-3 < a < 200 and -8 < b < 20 and -8 < c < 20 and b + c < self.count - 2
                and bool(np.isfinite(keys.slopes).all() and np.isfinite(keys.anchors).all())
                for (a, b, c), keys in zip(layouts, made, strict=True)]  # fmt: skip
        keys = [one for one, ok in zip(made, fair, strict=True) if ok]
        found = costs(Keys(*map(np.concatenate, zip(*keys, strict=True))), self.thin) if keys else iter(())
        return [next(found) if ok else math.inf for ok in fair]

    def _ranked(self) -> list[tuple[float, Array]]:
        grid = [np.array([log_of(a), *past]) for a in SHARPNESSES for past in PAST]
        ranked = sorted(zip(self.judged(grid), range(len(grid)), strict=True))
        return [(cost, grid[i]) for cost, i in ranked]

    def first(self) -> float:
        """What the best layout of a grid costs."""
        return self._ranked()[0][0]

    def best(self) -> tuple[float, Head]:
        """The best head that the search finds, and its largest error on the samples."""
        starts = [spot + MOVES for _, spot in self._ranked()[:2]]
        _, spot = min(descend(self.judged, starts, 60), key=lambda found: found[0])
        return solve(self.keys(self._layout(spot)), self.problem, horner=False)

    def _layout(self, spot: Array) -> Layout:
        sharpness, before, after = spot.tolist()
        return exp_of(sharpness), before, after


def gamma(f: Function, low: float, high: float, keys: int, *, affine: bool, goal: float, limit: float, extra: Array,
          relative: bool) -> Gamma:  # fmt: skip
    """Gamma heads with that many keys on an interval that does not hold zero; `best()` is the best, and its error.

    affine: values may be affine in u. relative: errors in units of |f|.
    """
    u = np.unique(np.concatenate([decades(low, high, 12 * keys + 60), extra[(extra >= low) & (extra <= high)]]))
    target = f(u)
    goal = max(goal, 1e-15 * (1.0 if relative else float(np.abs(target).max())), 1e-300)
    return Gamma(keys, Problem(u, target, None, None, affine, goal, limit, 0.0, relative))
