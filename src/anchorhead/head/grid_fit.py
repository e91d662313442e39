"""Fits a tensor grid of keys (`grid_head.py`) to a function of several variables (docs/mathematics.md 2.7).

Each axis has keys with evenly spaced slopes and concave intercepts (`uniform_keys.py`). One attention layer then
reproduces smooth functions of m variables with an error that falls geometrically in the number of keys of each axis.

*Values* are solved for axis by axis. Let W^i also be the matrix of the weights at the sample points of axis i. The
least squares problem over the grid of all samples has the matrix W^1 ⊗ … ⊗ W^m. Let W^i = U^i S^i T^i with orthonormal
columns U^i, a diagonal S^i that falls like the singular values, and a triangular T^i of moderate numbers, its columns
permuted (`linear_algebra.orthogonal`). The problem with about a ridge λ on all values at once has the solution

    V = (T^1 ⊗ … ⊗ T^m)⁻¹  σ/(σ² + λ²)  (U^1 ⊗ … ⊗ U^m)^T f,    σ = products of the axes' S.

A ridge on each axis by itself would not do: what rounding leaves on one axis is rough along the next, which would
amplify it again.

*Curvature and spacing* are searched for on each axis by itself, on a few slices of f along it. An axis may make
values larger than f by the m-th root of what the limit leaves, so that all together stay within it. If values
exceed the limit nevertheless, ridges grow until they do not.

Nothing here is trusted: errors are those at samples. The certificate decides. All of it is arithmetic that is the same
on every machine, as far as f is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from threadpoolctl import threadpool_limits

from anchorhead.arithmetic import (
    Array,
    power,
)
from anchorhead.errors import InputError, ShapeError, ToleranceError
from anchorhead.head.grid_axis import QUIET, AxisKeys, AxisLayout, AxisSearch, slabs
from anchorhead.head.grid_head import MOST_ENTRIES, Box, GridFunction, GridHead, checked_box
from anchorhead.head.grid_joint import SEARCHED_ENTRIES, JointSearch
from anchorhead.head.uniform_keys import uniform_keys

MOST_KEYS = 1 << 20
MOST_ON_AXIS = 1 << 10
ROUNDED = 1e-15
"""Of the target's size: no error smaller than that is aimed at."""
SLICES = 10


def fit_grid(f: GridFunction, box: Box, keys: int | Sequence[int], *, goal: float = 0.0,
             limit: float = 1e3) -> GridHead:  # fmt: skip
    """The best grid found with these numbers of keys, its values at most `limit` times the size of f.

    f maps (N, m) to (N, q). goal: the error worth reaching; none smaller is paid for with larger values.
    """
    counts = (keys,) * len(box) if isinstance(keys, int) else tuple(int(k) for k in keys)
    return Fitting(f, box, goal, limit).fit(counts)


def smallest_grid(f: GridFunction, box: Box, tol: float, *, limit: float = 1e3,
                  most: int = MOST_KEYS) -> GridHead | None:  # fmt: skip
    """The grid with the fewest keys found whose error at the samples is at most tol; None if `most` do not suffice."""
    if not tol > 0:
        raise InputError(f"tol={tol} must be positive; it is the largest error allowed.")
    with threadpool_limits(1):
        fitting = Fitting(f, box, tol / 4, limit)
        if tol < ROUNDED * fitting.scale:
            raise ToleranceError(
                f"The target is as large as {fitting.scale:.3g}, where numbers lie farther apart than tol={tol:g}; use "
                "a larger tol, or rescale the target."
            )
        return _smallest(fitting, tol, most)


def sampled_error(f: GridFunction, head: GridHead, box: Box, points: int = 1 << 18) -> float:
    """The largest |f - h| over a lattice of about that many points, which lie between those fitted on."""
    with threadpool_limits(1):
        return Fitting(f, box, 0.0, 1.0).error(head, points)


def _smallest(fitting: Fitting, tol: float, most: int) -> GridHead | None:
    """Numbers of keys that serve the slices of each axis; more of all until the grid serves, then fewer again."""
    counts: list[int] = []
    for i in range(fitting.axes):
        counts.append(_enough(fitting, i, tol / 2, most // math.prod(counts)))
    best = None
    while best is None:
        if math.prod(counts) > most:
            return None
        best = _within(fitting, counts, tol)
        counts = [max(k + 1, math.ceil(1.15 * k)) if k > 1 else k + (best is None) for k in counts]
    for factor in (0.8, 0.9):
        while (fewer := _within(fitting, _fewer(best.counts, factor), tol)) is not None and fewer.keys < best.keys:
            best = fewer
    for i in range(fitting.axes if best.keys <= SEARCHED_ENTRIES // 16 else 0):
        while best.counts[i] > 1:
            fewer = _within(fitting, [k - (j == i) for j, k in enumerate(best.counts)], tol)
            if fewer is None:
                break
            best = fewer
    return best


def _fewer(counts: Sequence[int], factor: float) -> list[int]:
    return [max(1, min(math.floor(factor * k), k - 1)) if k > 3 else k for k in counts]


def _within(fitting: Fitting, counts: Sequence[int], tol: float) -> GridHead | None:
    head = fitting.fit(counts)
    return head if fitting.error(head) <= tol and fitting.error(head, 1 << 18) <= tol else None


def _enough(fitting: Fitting, axis: int, tol: float, most: int) -> int:
    """The fewest keys found whose error on the slices along the axis is at most tol: doubling, then bisecting."""

    def serves(count: int) -> bool:
        return fitting.layout(axis, count, fitting.growths[0]).error <= tol

    high = 1
    while not serves(high):
        high *= 2
        if high > min(most, MOST_ON_AXIS):
            return MOST_KEYS + 1
    low = high // 2
    while high - low > max(1, high // 12):
        middle = (low + high) // 2
        low, high = (low, middle) if serves(middle) else (middle, high)
    return high


@dataclass
class Fitting:
    """One function on one box; layouts found for an axis are kept."""

    f: GridFunction
    box: Box
    goal: float
    limit: float
    known: dict[tuple[int, int, float], AxisLayout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.box = checked_box(self.box)
        self.slices = self._spread()
        ends = [np.abs(self.slice(i, np.linspace(*side, 33))).max() for i, side in enumerate(self.box)]
        self.scale = float(max(ends)) or 1.0
        self.outputs = self(self.slices[:1]).shape[1]
        self.goal = max(self.goal, ROUNDED * self.scale)

    @property
    def axes(self) -> int:
        return len(self.box)

    def __call__(self, points: Array) -> Array:
        """f, checked."""
        found = np.asarray(self.f(points), dtype=np.float64)
        if found.ndim != 2 or len(found) != len(points) or not found.shape[1]:
            raise ShapeError(f"f returned {found.shape} for points {points.shape}; it must map (N, m) to (N, q).")
        if not np.isfinite(found).all():
            raise InputError("f is not finite at a sample in the box; restrict the box to where it is.")
        return found

    def values_at(self, points: Sequence[Array]) -> Array:
        """f at all combinations, (n_1, .., n_m, q)."""
        mesh = np.stack(np.meshgrid(*points, indexing="ij"), axis=-1)
        return self(mesh.reshape(-1, self.axes)).reshape(*mesh.shape[:-1], -1)

    def _spread(self) -> Array:
        """Points that slices along the axes pass through: an additive sequence over the box, and corners of it."""
        rates = np.sqrt([2.0, 3.0, 5.0, 7.0][: self.axes])
        inside = (0.5 + np.outer(np.arange(SLICES if self.axes > 1 else 1), rates)) % 1
        corners = np.array(list(itertools.product((0.0, 1.0), repeat=self.axes))) if self.axes > 1 else inside
        lows, highs = np.array(self.box).T
        return lows + np.vstack([inside, corners]) * (highs - lows)

    def slice(self, axis: int, u: Array) -> Array:
        """f along the axis on the slices, (len(u), slices·q)."""
        points = np.repeat(self.slices[None], len(u), axis=0)
        points[..., axis] = u[:, None]
        return self(points.reshape(-1, self.axes)).reshape(len(u), -1)

    def keys(self, axis: int, count: int, curvatures: Array, spacings: Array) -> AxisKeys:
        """Slopes and intercepts of several sets of keys, (sets, count) each."""
        low, high = self.box[axis]
        steps = 2 * curvatures / (spacings * ((high - low) / 2)) if count > 1 else np.ones_like(curvatures)
        return uniform_keys(count, steps, curvatures, (low + high) / 2)[:2]

    def layout(self, axis: int, count: int, growth: float) -> AxisLayout:
        """The best keys found for an axis whose values may be `growth` times as large as f."""
        found = self.known.get((axis, count, growth))
        if found is None:
            found = self.known[axis, count, growth] = AxisSearch(self, axis, count, growth).run()
        return found

    @property
    def growths(self) -> tuple[float, float]:
        """What each axis may make of f: its share of the limit, and less, since axes can amplify each other."""
        share = max(4.0, power(self.limit, 1 / self.axes))
        return share, math.sqrt(share)

    def fit(self, counts: Sequence[int]) -> GridHead:
        """The head with these numbers of keys."""
        if len(counts) != self.axes or min(counts) < 1 or math.prod(counts) > MOST_KEYS:
            raise InputError(
                f"keys={tuple(counts)} for a box with {self.axes} sides: give one number, or one for each side, of at "
                f"least 1 each, with a product of at most {MOST_KEYS:,}."
            )
        with threadpool_limits(1):
            starts = [[self.layout(i, count, g) for i, count in enumerate(counts)] for g in self.growths]
            head = JointSearch(self, counts, self.limit, self.goal).run(starts)
            error = self.error(head)
            if error <= self.goal or self.limit <= QUIET:
                return head
            quiet = JointSearch(self, counts, QUIET, max(self.goal, error / 4)).run(starts)
            return quiet if self.error(quiet) <= 1.2 * error else head

    def error(self, head: GridHead, most: int = 1 << 16) -> float:
        """The largest |f - h| on a lattice of about `most` points, or eight for each key; ends included."""
        share = power(min(max(most, 8 * head.keys), MOST_ENTRIES) / head.keys, 1 / self.axes)
        points = [np.linspace(*side, math.ceil(min(share, 6) * k) + 30) for side, k in
                  zip(self.box, head.counts, strict=True)]  # fmt: skip
        worst = 0.0
        for part in slabs(points):
            here = [part, *points[1:]]
            worst = max(worst, float(np.abs(self.values_at(here) - head.on_lattice(here)).max()))
        return worst
