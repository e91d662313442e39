"""Keys whose resolution follows the target's: fine near some places, and coarser with the distance from them.

For a convex Φ let key k score the tangent of Φ at its anchor a_k, Φ(a_k) + Φ'(a_k)(u - a_k). That is Φ(u), which all
keys share, less the Bregman divergence between u and a_k: softmax prefers anchors near u, at a width of about
1/sqrt(Φ'') there. Φ = βu² gives the evenly spaced heads of `uniform_keys.py`, of the same width everywhere. Here

    Φ'' = A/ℓ²,   ℓ(u) = least of p_j + |u - c_j| over some places c_j,   anchors evenly spaced in  ∫ du/ℓ:

the width grows in proportion to the distance from the places, where keys crowd, and so do the gaps between anchors.
ℓ has slopes 1 and -1 in turn, and on each part all integrals are elementary. At an end of the domain ℓ is p + t with
t the distance from it, also a little outside: there 1/x, log, square roots and x/(1 + x) near a pole or a branch point
become as easy as smooth functions are for evenly spaced keys (on [0, 15], x/(1 + x) with 8 keys goes from 1e-3 to
2e-6); two ends at once serve asin. Places inside serve peaks and steps, whose poles lie beside the line above them:
atan(30x) on [-1, 1] with 16 keys goes from 1e-2 to 1e-7. (docs/mathematics.md 2.2)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from anchorhead.arithmetic import Array, exp, exp_of, expm1, geometric, log_of
from anchorhead.descent import descend
from anchorhead.head.solve import AGAIN, Crowd, Found, Keys, Problem, costs, solve

Layout = tuple[float, float, float]
"""Sharpness, offset, overhang."""
MOVES = np.array([[0, 0, 0], [0.3, 0, 0], [0, 0.3, 0], [0, 0, 0.2]])
"""From the first point of a search to its others; sharpness and offset in the logarithms."""
SHARPNESSES = (0.5, 2.0)
STEEP = 1e-3
"""A target that is smooth only at a smaller scale than this, in units of the domain, has steep lines."""
CLOSEST = 1e-5
"""The smallest offset to begin with, in units of the domain, where the target is smooth at that scale."""
OVERHANGS = (-0.3, 0.2)


def warped_keys(count: int, layout: Layout, problem: Problem, crowds: Sequence[Crowd]) -> Keys:
    """One set of keys: A = sharpness, p = offset; anchors reach past both ends by `overhang` of half their range.

    Intercepts are counted from that of the flattest key: those of steep keys are large where they crowd away from zero,
    and all others, whose scores are small, would round like them.
    """
    sharpness, offset, overhang = layout
    low, high = float(problem.points[0]), float(problem.points[-1])
    slopes, intercepts, anchors, widths = Width(crowds, offset, low, high).tangents(count, overhang)
    slopes, intercepts = sharpness * slopes, sharpness * intercepts
    return Keys(*(n[None] for n in (slopes, intercepts - intercepts[np.abs(slopes).argmin()], anchors, widths)))


class Width:
    """ℓ and the integrals of 1/ℓ and 1/ℓ², by parts on which its slope s is 1 or -1.

    With x the distance from an end of a part, where ℓ = L:  ∫ 1/ℓ = s log(ℓ/L),  ∫ 1/ℓ² = s(1/L - 1/ℓ), and integrated
    once more  s x/L - log(ℓ/L). All begin where ℓ is largest, and in each part where it is, so that nothing cancels.
    """

    def __init__(self, crowds: Sequence[Crowd], offset: float, low: float, high: float) -> None:
        """Of places, the first with p = offset, and the others in proportion to their scales."""
        found = sorted((c.place, offset * (c.scale / crowds[0].scale)) for c in crowds)
        ends: list[tuple[float, float]] = []  # of the parts, and ℓ there
        if found[0][0] > low:
            ends.append((low, found[0][1] + found[0][0] - low))
        ends.append(found[0])
        for (c, p), (d, q) in itertools.pairwise(found):
            meet = min(max((c + d + q - p) / 2, c), d)
            ends += [(meet, p + meet - c), (d, q)]
        if found[-1][0] < high:
            ends.append((high, found[-1][1] + high - found[-1][0]))
        self.ends = ends
        self.signs = [1.0 if after[1] > before[1] else -1.0 for before, after in itertools.pairwise(ends)]
        self.sums = self._sums(max(range(len(ends)), key=lambda i: ends[i][1]))

    def _sums(self, first: int) -> list[tuple[float, float, float]]:
        """∫ 1/ℓ, Φ' and Φ at the ends of the parts, for A = 1."""
        found = [(0.0, 0.0, 0.0)] * len(self.ends)
        steps = [(i, i + 1) for i in range(first, len(self.signs))] + [(i + 1, i) for i in reversed(range(first))]
        for start, end in steps:
            (u, value), (v, other) = self.ends[start], self.ends[end]
            (s, slope, phi), sign, grown = found[start], self.signs[min(start, end)], log_of(other / value)
            found[end] = (s + sign * grown, slope + sign * (1 / value - 1 / other),
                          phi + slope * (v - u) + sign * (v - u) / value - grown)  # fmt: skip
        return found

    def tangents(self, count: int, overhang: float) -> tuple[Array, Array, Array, Array]:
        """At so many places, evenly spaced in ∫ 1/ℓ: slope and intercept of Φ's tangents, the places, and ℓ."""
        spread = _stretched(self.sums[0][0], self.sums[-1][0], overhang, count)
        inner = np.array([s for s, _, _ in self.sums[1:-1]])
        part = np.searchsorted(inner, spread, side="right")
        coarse = [i if a[1] > b[1] else i + 1 for i, (a, b) in enumerate(itertools.pairwise(self.ends))]
        start, value = (np.array([self.ends[i][k] for i in coarse])[part] for k in range(2))
        s, first, phi = (np.array([self.sums[i][k] for i in coarse])[part] for k in range(3))
        sign = np.array(self.signs)[part]
        grown = sign * (spread - s)  # log(ℓ/L)
        x, width = sign * value * expm1(grown), value * exp(grown)
        slopes = first + sign * (1 / value - 1 / width)
        return slopes, phi + first * x + sign * x / value - grown - slopes * (start + x), start + x, width


def _stretched(start: float, end: float, overhang: float, count: int) -> Array:
    middle, reach = (start + end) / 2, (end - start) / 2 * (1 + overhang)
    return np.linspace(middle - reach, middle + reach, count)


class Warped:
    """Heads whose keys crowd at some places, the closest first."""

    def __init__(self, count: int, problem: Problem, crowds: Sequence[Crowd]) -> None:
        self.count, self.problem, self.crowds = count, problem, crowds
        self.thin = problem.thinned(count)
        self.width = float(problem.points[-1] - problem.points[0])
        self.local = crowds[0].scale < STEEP * self.width
        self.closest = min(CLOSEST * self.width, crowds[0].scale / 8)
        self.likely: Sequence[int] | None = None
        """Which places of the grid are looked at, where not all."""
        self.looked: list[tuple[float, int]] = []
        """What they cost, and which they are, cheapest first."""

    def judged(self, spots: Sequence[Array]) -> list[float]:
        """What the layout of each point of the search costs."""
        layouts = [self._layout(spot) for spot in spots]
        fair = [1e-3 < a < 1e4 and 1e-2 * self.closest < p < 1e3 * self.width and -0.9 < o < 6 for a, p, o in layouts]
        keys = [self._keys(found) for found, ok in zip(layouts, fair, strict=True) if ok]
        found = (
            costs(Keys(*map(np.concatenate, zip(*keys, strict=True))), self.thin, local=self.local)
            if keys
            else iter(())
        )
        return [next(found) if ok else math.inf for ok in fair]

    def first(self) -> float:
        """What the best layout of a grid costs."""
        return self.ranked()[0][0]

    def ranked(self) -> list[tuple[float, int]]:
        """What the layouts of a grid cost, and which they are, cheapest first."""
        if not self.looked:
            likely = range(len(self.grid)) if self.likely is None else self.likely
            self.looked = sorted(zip(self.judged([self.grid[i] for i in likely]), likely, strict=True))
        return self.looked

    @cached_property
    def grid(self) -> list[Array]:
        """Places to begin at."""
        offsets = geometric(self.closest, self.width, 9).tolist()[::2]
        return [np.array([log_of(a), log_of(p), o]) for a in SHARPNESSES for p in offsets for o in OVERHANGS]

    def best(self, near: Array | None = None) -> Found:
        """The best head that the search finds, from the layout of a similar one where there is one."""
        few = self.count <= 24
        if near is None:
            starts = [self.grid[i] + MOVES for _, i in self.ranked()[: 2 if few else 1]]
            found = descend(self.judged, starts, 80 if few else 60)
        else:
            found = descend(self.judged, [near + MOVES / 2], AGAIN)
        _, spot = min(found, key=lambda f: f[0])
        return Found(*solve(self._keys(self._layout(spot)), self.problem, horner=False), spot)

    def _layout(self, spot: Array) -> Layout:
        sharpness, offset, overhang = spot.tolist()
        return exp_of(sharpness), exp_of(offset), overhang

    def _keys(self, layout: Layout) -> Keys:
        return warped_keys(self.count, layout, self.problem, self.crowds)
