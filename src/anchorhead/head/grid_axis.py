"""The keys of one axis of a grid: curvature and spacing, searched on slices along the axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anchorhead.head.grid_fit import Fitting

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from anchorhead.arithmetic import Array, exp_of, geometric, log, log_of
from anchorhead.descent import descend
from anchorhead.head.grid_head import MOST_ENTRIES, axis_weights
from anchorhead.head.solve import FLOOR, samples
from anchorhead.linear_algebra import least_squares, product

BEYOND = (math.inf, math.inf)
SEARCHED = 48
"""Beyond this many keys on an axis the layout is that of this many, stretched, with a few curvatures tried."""
AxisKeys = tuple[Array, Array]


QUIET = 4.0
"""Where the error stays above the goal, f is not smooth for so few keys, and values of this size may serve better."""


AT_ONCE = 1 << 16
"""Numbers that are worked on at once, where layouts are compared."""


MOVES = np.array([[0.0, 0.0], [0.15, 0.0], [0.0, 0.08]])
"""From the first point of a search to its others, in the logarithms of curvature and spacing."""


CLOSE = 1e-3
"""A search over all axes ends when logarithms, and that of the error, differ by no more than this."""


@dataclass(frozen=True)
class AxisLayout:
    """Curvature and spacing (in units of half the side) of an axis' keys, and the largest error on its slices."""

    curvature: float
    spacing: float
    error: float


def stretched(spacing: float, few: int, many: int) -> float:
    """The spacing at which as many of many keys lie past the ends as of few at the given one."""
    past = (few - 1) / 2 - 1 / spacing
    return 1 / max(0.5, (many - 1) / 2 - past)


def cost(error: float, goal: float, size: float, limit: float) -> float:
    """What a layout is judged by: the error, down to a part of the goal, and values, most of all beyond the limit."""
    beyond = max(1.0, size / limit)
    return log_of(max(error, goal / 8)) + 0.1 * log_of(max(1.0, size)) + 2 * log_of(beyond)


class AxisSearch:
    """Curvature and spacing of one axis: a coarse grid on fewer samples, then a descent from the best points."""

    def __init__(self, fitting: Fitting, axis: int, count: int, growth: float) -> None:
        self.fitting, self.axis, self.count, self.growth = fitting, axis, count, growth
        self.fine = self._samples(3 * count + 40)
        self.thin = self._samples(3 * count // 2 + 16)
        self.ridge = fitting.goal / (10 * growth * fitting.scale)

    def _samples(self, count: int) -> tuple[Array, Array]:
        low, high = self.fitting.box[self.axis]
        u = samples(low, high, count, np.zeros(0), flat_ends=False)
        return u, self.fitting.slice(self.axis, u)

    def run(self) -> AxisLayout:
        if self.count == 1:
            return self._layout(0.0, 1.0)
        if self.count > SEARCHED:
            return self._stretched()
        spacings = geometric(0.1, 6.0, 12) * min(1, 4 / self.count)
        grid = list(itertools.product(geometric(0.02, 4.0, 10).tolist(), spacings.tolist()))
        ranked = sorted(zip(self._objectives(grid, self.thin), grid, strict=True))
        simplices = [np.array([log_of(c), log_of(h)]) + MOVES for _, (c, h) in ranked[:2]]
        found = descend(lambda places: self._objectives(_layouts(places), self.fine), simplices, 40)
        _, _, place = min((cost, i, place.tolist()) for i, (cost, place) in enumerate(found))
        return self._layout(exp_of(place[0]), exp_of(place[1]))

    def _stretched(self) -> AxisLayout:
        """The layout of fewer keys, as many of them past the ends, for a few curvatures."""
        model = self.fitting.layout(self.axis, SEARCHED, self.growth)
        h = stretched(model.spacing, SEARCHED, self.count)
        factors = (0.25, 0.5, 1.0, 2.0, 4.0) if self.count <= 4 * SEARCHED else (1.0,)
        tried = [(model.curvature * s, h) for s in factors]
        _, (c, _) = min(zip(self._objectives(tried, self.thin), tried, strict=True))
        return self._layout(c, h)

    def _layout(self, curvature: float, spacing: float) -> AxisLayout:
        ((error, _),) = self._errors([(curvature, spacing)], self.fine)
        return AxisLayout(curvature, spacing, error)

    def _errors(self, layouts: Sequence[tuple[float, float]], on: tuple[Array, Array]) -> Iterator[tuple[float, float]]:
        """For each layout the largest error on the slices, and the largest value in units of f."""
        u, target = on[0], np.ascontiguousarray(on[1].T)
        together = max(1, AT_ONCE // ((self.count + len(target)) * len(u)))
        ridge = math.sqrt(len(u)) * max(self.ridge, FLOOR) * np.ones(self.count)
        for start in range(0, len(layouts), together):
            keys = self.fitting.keys(self.axis, self.count, *np.array(layouts[start : start + together]).T)
            weights = axis_weights(*keys, u)
            values = least_squares(weights, np.broadcast_to(target, (len(weights), *target.shape)), ridge)
            errors = np.abs(product(values.swapaxes(-1, -2), weights) - target).max((-1, -2))
            sizes = np.abs(values).max((-1, -2)) / self.fitting.scale
            yield from zip(errors.tolist(), sizes.tolist(), strict=True)

    def _objectives(self, layouts: Sequence[tuple[float, float]], on: tuple[Array, Array]) -> list[float]:
        fair = [1e-3 < c < 60 and 1e-6 < h < 1e3 for c, h in layouts]
        found = self._errors([layout for layout, ok in zip(layouts, fair, strict=True) if ok], on)
        goal, growth = self.fitting.goal, self.growth
        return [cost(error, goal, size, growth) for error, size in (next(found) if ok else BEYOND for ok in fair)]


def _layouts(places: Sequence[Array]) -> list[tuple[float, float]]:
    """Curvatures and spacings from their logarithms."""
    return [(exp_of(c), exp_of(h)) for c, h in (place.tolist() for place in places)]


def logarithms(layouts: Sequence[AxisLayout]) -> Array:
    return log(np.array([[max(a.curvature, 1e-9), a.spacing] for a in layouts]))


def slabs(points: Sequence[Array]) -> Iterator[Array]:
    """The first axis' points in parts, so that the grid over a part stays small."""
    rows = max(1, MOST_ENTRIES // (4 * math.prod(len(u) for u in points[1:])))
    for start in range(0, len(points[0]), rows):
        yield points[0][start : start + rows]
