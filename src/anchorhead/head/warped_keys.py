"""Keys whose resolution is proportional to the distance from a point: for functions that change fast near one place.

For a convex Φ let key k score the tangent of Φ at its anchor a_k, Φ(a_k) + Φ'(a_k)(u - a_k). That is Φ(u), which all
keys share, less the Bregman divergence between u and a_k: softmax prefers anchors near u, at a width of about
1/sqrt(Φ'') there. Φ = βu² gives the evenly spaced heads of `uniform_keys.py`, of the same width everywhere. Here the
width grows in proportion to the distance from a place, where keys crowd, and so do the gaps between anchors.

*At an end* of the domain, with t the distance from it,

    Φ = -A log(p + t),   anchors with p + t_k in geometric progression:

1/x, log, square roots and x/(1 + x) near a pole or a branch point just outside the domain become as easy as smooth
functions are for evenly spaced keys: on [0, 15], x/(1 + x) with 8 keys goes from 1e-3 to 2e-6.

*Inside* it, at c, with t = u - c of either sign,

    Φ'' = A/(p + |t|)²,   Φ' = A t/(p (p + |t|)),   Φ - t Φ' = A (|t|/(p + |t|) - log(1 + |t|/p)),

anchors evenly spaced in ±log(1 + |t|/p): for peaks and steps, whose poles lie beside the line above c. atan(30x) on
[-1, 1] with 16 keys goes from 1e-2 to 1e-7. (docs/mathematics.md 2.2)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anchorhead.arithmetic import Array, exp, exp_of, expm1, geometric, log, log1p, log_of
from anchorhead.descent import descend
from anchorhead.head.head import Head
from anchorhead.head.solve import Keys, Problem, costs, solve

Layout = tuple[float, float, float]
"""Sharpness, offset, overhang."""
MOVES = np.array([[0, 0, 0], [0.3, 0, 0], [0, 0.3, 0], [0, 0, 0.2]])
"""From the first point of a search to its others; sharpness and offset in the logarithms."""
SHARPNESSES = (0.5, 2.0, 8.0)
OFFSETS = tuple(geometric(1e-5, 1.0, 9).tolist())
OVERHANGS = (-0.3, 0.2, 0.8)


def warped_keys(count: int, layout: Layout, problem: Problem, place: float) -> Keys:
    """One set of keys: A = sharpness, p = offset; anchors reach past both ends by `overhang` of half their range."""
    low, high = float(problem.points[0]), float(problem.points[-1])
    slopes, intercepts, anchors, widths = (_inside if low < place < high else _at_end)(count, layout, low, high, place)
    order = np.argsort(slopes, kind="stable")
    return Keys(*(n[order][None] for n in (slopes, intercepts - intercepts.max(), anchors, widths)))


def _at_end(count: int, layout: Layout, low: float, high: float, place: float) -> Keys:
    sharpness, offset, overhang = layout
    t = exp(_stretched(log_of(offset), log_of(offset + high - low), overhang, count))
    slopes = -sharpness / t
    intercepts = sharpness * (t - offset) / t - sharpness * log(t)
    if place <= low:
        return Keys(slopes, intercepts - slopes * low, low + (t - offset), t)
    return Keys(-slopes, intercepts + slopes * high, high - (t - offset), t)


def _inside(count: int, layout: Layout, low: float, high: float, place: float) -> Keys:
    sharpness, offset, overhang = layout
    ends = np.array([place - low, high - place]) / offset
    left, right = log1p(ends).tolist()
    spread = _stretched(-left, right, overhang, count)
    t = np.sign(spread) * offset * expm1(np.abs(spread))
    share = np.abs(t) / (offset + np.abs(t))
    slopes = sharpness * np.sign(t) * share / offset
    return Keys(slopes, sharpness * (share - np.abs(spread)) - slopes * place, place + t, offset + np.abs(t))


def _stretched(start: float, end: float, overhang: float, count: int) -> Array:
    middle, reach = (start + end) / 2, (end - start) / 2 * (1 + overhang)
    return np.linspace(middle - reach, middle + reach, count)


class Warped:
    """Heads whose keys crowd at a place."""

    def __init__(self, count: int, problem: Problem, place: float) -> None:
        self.count, self.problem, self.place = count, problem, place
        self.thin = problem.thinned()
        self.width = float(problem.points[-1] - problem.points[0])

    def judged(self, spots: Sequence[Array]) -> list[float]:
        """What the layout of each point of the search costs."""
        layouts = [self._layout(spot) for spot in spots]
        fair = [1e-3 < a < 1e4 and 1e-7 * self.width < p < 1e3 * self.width and -0.9 < o < 6 for a, p, o in layouts]
        keys = [self._keys(found) for found, ok in zip(layouts, fair, strict=True) if ok]
        found = costs(Keys(*map(np.concatenate, zip(*keys, strict=True))), self.thin) if keys else iter(())
        return [next(found) if ok else math.inf for ok in fair]

    def first(self, *, coarse: bool = False) -> float:
        """What the best layout of a grid costs, or of one in three of it."""
        return self._ranked(coarse=coarse)[0][0]

    def _ranked(self, *, coarse: bool) -> list[tuple[float, Array]]:
        grid = [np.array([log_of(a), log_of(p * self.width), o])
                for a in SHARPNESSES[: 2 if coarse else 3] for p in OFFSETS[:: 2 if coarse else 1]
                for o in OVERHANGS[: 2 if coarse else 3]]  # fmt: skip
        ranked = sorted(zip(self.judged(grid), range(len(grid)), strict=True))
        return [(cost, grid[i]) for cost, i in ranked]

    def best(self) -> tuple[float, Head]:
        """The best head that the search finds, and its largest error on the samples."""
        few = self.count <= 24
        starts = [spot + MOVES for _, spot in self._ranked(coarse=True)[: 2 if few else 1]]
        found = descend(self.judged, starts, 80 if few else 60)
        _, spot = min(found, key=lambda f: f[0])
        return solve(self._keys(self._layout(spot)), self.problem, horner=False, lawson=40)

    def _layout(self, spot: Array) -> Layout:
        sharpness, offset, overhang = spot.tolist()
        return exp_of(sharpness), exp_of(offset), overhang

    def _keys(self, layout: Layout) -> Keys:
        return warped_keys(self.count, layout, self.problem, self.place)
