"""Fits a tensor grid of keys (`grid_head.py`) to a function of several variables (docs/mathematics.md 2.7).

Each axis has keys with evenly spaced slopes and concave intercepts (`uniform_keys.py`). One attention layer then
reproduces smooth functions of m variables with an error that falls geometrically in the number of keys of each axis.

*Values* are solved for axis by axis. Let W^i also be the matrix of the weights at the sample points of axis i. The
least squares problem over the grid of all samples has the matrix W^1 ⊗ … ⊗ W^m. Let W^i = U^i S^i T^i with orthonormal
columns U^i, a diagonal S^i that falls like the singular values, and a triangular T^i of moderate numbers, its columns
permuted (`arithmetic.orthogonal`). The problem with about a ridge λ on all values at once has the solution

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from threadpoolctl import threadpool_limits

from anchorhead.arithmetic import (
    Array,
    descend,
    exp,
    exp_of,
    geometric,
    least_squares,
    log,
    log_of,
    orthogonal,
    power,
    product,
)
from anchorhead.errors import InputError, ShapeError, ToleranceError
from anchorhead.head.grid_head import MOST_ENTRIES, Box, GridFunction, GridHead, axis_weights, checked_box, contracted
from anchorhead.head.solve import FLOOR, samples
from anchorhead.head.uniform_keys import uniform_keys

_Keys = tuple[Array, Array]

MOST_KEYS = 1 << 20
MOST_ON_AXIS = 1 << 10
ROUNDED = 1e-15
"""Of the target's size: no error smaller than that is aimed at."""
SLICES = 10
SEARCHED_ENTRIES = 1 << 18
"""Samples, times outputs, up to which layouts are searched for on the whole grid."""
SEARCHED = 48
"""Beyond this many keys on an axis the layout is that of this many, stretched, with a few curvatures tried."""
QUIET = 4.0
"""Where the error stays above the goal, f is not smooth for so few keys, and values of this size may serve better."""
AT_ONCE = 1 << 16
"""Numbers that are worked on at once, where layouts are compared."""
MOVES = np.array([[0.0, 0.0], [0.15, 0.0], [0.0, 0.08]])
"""From the first point of a search to its others, in the logarithms of curvature and spacing."""
CLOSE = 1e-3
"""A search over all axes ends when logarithms, and that of the error, differ by no more than this."""
BEYOND = (math.inf, math.inf)


def fit_grid(f: GridFunction, box: Box, keys: int | Sequence[int], *, goal: float = 0.0,
             limit: float = 1e3) -> GridHead:  # fmt: skip
    """The best grid found with these numbers of keys, its values at most `limit` times the size of f.

    f maps (N, m) to (N, q). goal: the error worth reaching; none smaller is paid for with larger values.
    """
    counts = (keys,) * len(box) if isinstance(keys, int) else tuple(int(k) for k in keys)
    return _Fitting(f, box, goal, limit).fit(counts)


def smallest_grid(f: GridFunction, box: Box, tol: float, *, limit: float = 1e3,
                  most: int = MOST_KEYS) -> GridHead | None:  # fmt: skip
    """The grid with the fewest keys found whose error at the samples is at most tol; None if `most` do not suffice."""
    if not tol > 0:
        raise InputError(f"tol={tol} must be positive; it is the largest error allowed.")
    with threadpool_limits(1):
        fitting = _Fitting(f, box, tol / 4, limit)
        if tol < ROUNDED * fitting.scale:
            raise ToleranceError(
                f"The target is as large as {fitting.scale:.3g}, where numbers lie farther apart than tol={tol:g}; use "
                "a larger tol, or rescale the target."
            )
        return _smallest(fitting, tol, most)


def sampled_error(f: GridFunction, head: GridHead, box: Box, points: int = 1 << 18) -> float:
    """The largest |f - h| over a lattice of about that many points, which lie between those fitted on."""
    with threadpool_limits(1):
        return _Fitting(f, box, 0.0, 1.0).error(head, points)


def _smallest(fitting: _Fitting, tol: float, most: int) -> GridHead | None:
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


def _within(fitting: _Fitting, counts: Sequence[int], tol: float) -> GridHead | None:
    head = fitting.fit(counts)
    return head if fitting.error(head) <= tol and fitting.error(head, 1 << 18) <= tol else None


def _enough(fitting: _Fitting, axis: int, tol: float, most: int) -> int:
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


@dataclass(frozen=True)
class _Layout:
    """Curvature and spacing (in units of half the side) of an axis' keys, and the largest error on its slices."""

    curvature: float
    spacing: float
    error: float


@dataclass
class _Fitting:
    """One function on one box; layouts found for an axis are kept."""

    f: GridFunction
    box: Box
    goal: float
    limit: float
    known: dict[tuple[int, int, float], _Layout] = field(default_factory=dict)

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

    def keys(self, axis: int, count: int, curvatures: Array, spacings: Array) -> _Keys:
        """Slopes and intercepts of several sets of keys, (sets, count) each."""
        low, high = self.box[axis]
        steps = 2 * curvatures / (spacings * ((high - low) / 2)) if count > 1 else np.ones_like(curvatures)
        return uniform_keys(count, steps, curvatures, (low + high) / 2)

    def layout(self, axis: int, count: int, growth: float) -> _Layout:
        """The best keys found for an axis whose values may be `growth` times as large as f."""
        found = self.known.get((axis, count, growth))
        if found is None:
            found = self.known[axis, count, growth] = _Search(self, axis, count, growth).run()
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
            head = _Joint(self, counts, self.limit, self.goal).run(starts)
            error = self.error(head)
            if error <= self.goal or self.limit <= QUIET:
                return head
            quiet = _Joint(self, counts, QUIET, max(self.goal, error / 4)).run(starts)
            return quiet if self.error(quiet) <= 1.2 * error else head

    def error(self, head: GridHead, most: int = 1 << 16) -> float:
        """The largest |f - h| on a lattice of about `most` points, or eight for each key; ends included."""
        share = power(min(max(most, 8 * head.keys), MOST_ENTRIES) / head.keys, 1 / self.axes)
        points = [np.linspace(*side, math.ceil(min(share, 6) * k) + 30) for side, k in
                  zip(self.box, head.counts, strict=True)]  # fmt: skip
        worst = 0.0
        for part in _slabs(points):
            here = [part, *points[1:]]
            worst = max(worst, float(np.abs(self.values_at(here) - head.on_lattice(here)).max()))
        return worst


def _slabs(points: Sequence[Array]) -> Iterator[Array]:
    """The first axis' points in parts, so that the grid over a part stays small."""
    rows = max(1, MOST_ENTRIES // (4 * math.prod(len(u) for u in points[1:])))
    for start in range(0, len(points[0]), rows):
        yield points[0][start : start + rows]


def _stretched(spacing: float, few: int, many: int) -> float:
    """The spacing at which as many of many keys lie past the ends as of few at the given one."""
    past = (few - 1) / 2 - 1 / spacing
    return 1 / max(0.5, (many - 1) / 2 - past)


def _cost(error: float, goal: float, size: float, limit: float) -> float:
    """What a layout is judged by: the error, down to a part of the goal, and values, most of all beyond the limit."""
    beyond = max(1.0, size / limit)
    return log_of(max(error, goal / 8)) + 0.1 * log_of(max(1.0, size)) + 2 * log_of(beyond)


class _Search:
    """Curvature and spacing of one axis: a coarse grid on fewer samples, then a descent from the best points."""

    def __init__(self, fitting: _Fitting, axis: int, count: int, growth: float) -> None:
        self.fitting, self.axis, self.count, self.growth = fitting, axis, count, growth
        self.fine = self._samples(3 * count + 40)
        self.thin = self._samples(3 * count // 2 + 16)
        self.ridge = fitting.goal / (10 * growth * fitting.scale)

    def _samples(self, count: int) -> tuple[Array, Array]:
        low, high = self.fitting.box[self.axis]
        u = samples(low, high, count, np.zeros(0), flat_ends=False)
        return u, self.fitting.slice(self.axis, u)

    def run(self) -> _Layout:
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

    def _stretched(self) -> _Layout:
        """The layout of fewer keys, as many of them past the ends, for a few curvatures."""
        model = self.fitting.layout(self.axis, SEARCHED, self.growth)
        h = _stretched(model.spacing, SEARCHED, self.count)
        factors = (0.25, 0.5, 1.0, 2.0, 4.0) if self.count <= 4 * SEARCHED else (1.0,)
        tried = [(model.curvature * s, h) for s in factors]
        _, (c, _) = min(zip(self._objectives(tried, self.thin), tried, strict=True))
        return self._layout(c, h)

    def _layout(self, curvature: float, spacing: float) -> _Layout:
        ((error, _),) = self._errors([(curvature, spacing)], self.fine)
        return _Layout(curvature, spacing, error)

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
        return [_cost(error, goal, size, growth) for error, size in (next(found) if ok else BEYOND for ok in fair)]


def _layouts(places: Sequence[Array]) -> list[tuple[float, float]]:
    """Curvatures and spacings from their logarithms."""
    return [(exp_of(c), exp_of(h)) for c, h in (place.tolist() for place in places)]


def _logarithms(layouts: Sequence[_Layout]) -> Array:
    return log(np.array([[max(a.curvature, 1e-9), a.spacing] for a in layouts]))


class _Joint:
    """The whole grid with given numbers of keys: values for layouts, and a descent in all layouts at once."""

    def __init__(self, fitting: _Fitting, counts: Sequence[int], limit: float, goal: float) -> None:
        self.fitting, self.counts, self.goal = fitting, tuple(counts), goal
        extra = 1.4 if len(counts) < 4 else 1.0
        self.points = [samples(low, high, math.ceil(extra * k) + 6, np.zeros(0), flat_ends=False)
                       for (low, high), k in zip(fitting.box, counts, strict=True)]  # fmt: skip
        total = math.prod(len(u) for u in self.points)
        self.target = fitting.values_at(self.points) if total <= MOST_ENTRIES else None
        self.largest = limit * fitting.scale
        self.ridge = goal / (10 * self.largest)
        self.limit = limit

    def run(self, starts: Sequence[Sequence[_Layout]]) -> GridHead:
        """The head; for many samples the layout is that of a smaller grid, stretched."""
        if self.target is not None and self.target.size <= SEARCHED_ENTRIES:
            return self._limited(self._searched(starts))
        smaller = [max(2, math.floor(k * self._reduction())) if k > 2 else k for k in self.counts]
        model = _Joint(self.fitting, smaller, self.limit, self.goal)
        few = [[self.fitting.layout(i, k, g) for i, k in enumerate(smaller)] for g in self.fitting.growths]
        curvatures, spacings = exp(model._searched(few)).T
        sizes = list(zip(spacings, smaller, self.counts, strict=True))
        same_keys_past = [_stretched(h, a, b) for h, a, b in sizes]
        same_reach = [h * (a - 1) / (b - 1) if b > 1 else h for h, a, b in sizes]
        tried = [log(np.stack([curvatures, h], axis=1)) for h in (same_keys_past, same_reach)]
        if max(self.counts) <= SEARCHED:
            tried += [_logarithms(layouts) for layouts in starts]
        return min((self._limited(t) for t in tried), key=self.fitting.error)

    def _reduction(self) -> float:
        """By what factor all axes must shrink for a search to be affordable."""
        outputs = self.fitting.outputs
        entries = outputs * math.prod(len(u) for u in self.points)
        return 0.9 * power(SEARCHED_ENTRIES / entries, 1 / len(self.counts))

    def _searched(self, starts: Sequence[Sequence[_Layout]]) -> Array:
        """Logarithms of curvature and spacing of each axis."""
        assert self.target is not None
        tries = int(min(30 * len(self.counts), 6e6 / self.target.size))
        known = [_logarithms(layouts) for layouts in starts] + self._usual()
        ranked = [known[i] for _, i in sorted(zip(self._objectives(known), range(len(known)), strict=True))]
        if tries < 8:
            return ranked[0]
        found = self._descend(ranked[:3], tries, together=True)
        _, best = min(zip(found, range(len(found)), strict=True), key=lambda pair: (pair[0][0], pair[1]))[0]
        ((_, best),) = self._descend([best], tries)
        return best

    def _usual(self) -> list[Array]:
        """Layouts that often serve: curvatures from 0.2 to 0.8, and 1 to 4 keys past each end."""
        past = [[1 / max(0.5, (k - 1) / 2 - over) for k in self.counts] for over in (1, 2, 3, 4)]
        return [log(np.array([[c, h] for h in spacings])) for spacings in past for c in (0.2, 0.35, 0.8)]

    def _descend(self, starts: Sequence[Array], tries: int, together: bool = False) -> list[tuple[float, Array]]:
        """Nelder-Mead in the logarithms, each axis by itself or all `together`."""
        axes = len(self.counts)
        moves = np.tile(MOVES, axes) if together else np.vstack([MOVES[:1].repeat(axes, 0).ravel(), *_apart(axes)])
        found = descend(lambda places: self._objectives([p.reshape(axes, 2) for p in places]),
                        [start.ravel() + moves for start in starts], tries, CLOSE)  # fmt: skip
        return [(value, place.reshape(axes, 2)) for value, place in found]

    def _keys(self, several: Sequence[Array]) -> list[_Keys]:
        """Of each axis, for several sets of logarithms (axes, 2)."""
        sizes = exp(np.array(several))
        return [self.fitting.keys(i, k, sizes[:, i, 0], sizes[:, i, 1]) for i, k in enumerate(self.counts)]

    def _objectives(self, several: Sequence[Array]) -> list[float]:
        """What the layouts with these logarithms cost; as many at once as the memory of their values allows."""
        assert self.target is not None
        fair = [bool(p[:, 0].max() <= 4 and np.abs(p[:, 1]).max() <= 7) for p in several]
        among = [p for p, ok in zip(several, fair, strict=True) if ok]
        together = max(1, AT_ONCE // self.target.size)
        found: list[tuple[float, float]] = []
        for start in range(0, len(among), together):
            problem = self._problem(self._keys(among[start : start + together]))
            values = problem.values(self.ridge)
            sizes = np.abs(values).reshape(len(values), -1).max(-1) / self.fitting.scale
            found += zip(problem.errors(values, self.target).tolist(), sizes.tolist(), strict=True)
        limit, listed = self.largest / self.fitting.scale, iter(found)
        return [_cost(e, self.goal, size, limit) for e, size in (next(listed) if ok else BEYOND for ok in fair)]

    def _problem(self, keys: Sequence[_Keys]) -> _TensorRidge:
        weights = [axis_weights(*axis, u) for axis, u in zip(keys, self.points, strict=True)]
        return _TensorRidge(weights, self._target)

    def _target(self) -> Iterator[Array]:
        """f at the samples; what is not at hand is asked for slab by slab of the first axis."""
        if self.target is not None:
            yield self.target
        else:
            yield from (self.fitting.values_at([part, *self.points[1:]]) for part in _slabs(self.points))

    def _limited(self, parameters: Array) -> GridHead:
        """Values within the limit: the ridge grows until they are, and further where the error does not mind."""
        keys = self._keys([parameters])
        problem = self._problem(keys)
        ridge, enough, best = max(self.ridge, FLOOR), self.goal / 2, None
        for _ in range(40):
            (values,) = problem.values(ridge)
            if np.abs(values).max() <= self.largest:
                if self.target is None:
                    best = values
                    break
                error = float(problem.errors(values, self.target).max())
                if best is None:
                    enough = max(enough, 1.2 * error)
                elif error > enough:
                    break
                best = values
            ridge *= 8
        values = values if best is None else best
        return GridHead(tuple(slopes[0] for slopes, _ in keys), tuple(levels[0] for _, levels in keys), values)


def _apart(axes: int) -> list[Array]:
    """One move for each parameter of each axis."""
    return [np.eye(axes)[i].repeat(2) * np.tile(move, axes) for i in range(axes) for move in MOVES[1:]]


class _TensorRidge:
    """Least squares over the grid of samples with a ridge, for several sets of keys at once; see the top.

    weights: of each axis, (sets, keys, samples). target: slabs of the first axis, in order.
    """

    def __init__(self, weights: Sequence[Array], target: Callable[[], Iterator[Array]]) -> None:
        self.weights = [w.swapaxes(-1, -2) for w in weights]
        alike = len({w.shape for w in weights}) == 1  # then all axes at once
        found = list(zip(*orthogonal(np.stack(weights)), strict=True)) if alike else [orthogonal(w) for w in weights]
        left, self.right = [f[0] for f in found], [f[2] for f in found]
        slabs = [contracted([None, *left[1:]], slab) for slab in target()]
        self.analysed = contracted([left[0], *[None] * (len(left) - 1)], np.concatenate(slabs, -len(left) - 1))
        self.sizes = np.ones((len(weights[0]), 1))
        for _, sizes, _ in found:
            self.sizes = self.sizes[..., None, :] * sizes.reshape(len(sizes), *[1] * (self.sizes.ndim - 2), -1, 1)
        self.samples = math.prod(w.shape[-1] for w in weights)

    def values(self, ridge: float) -> Array:
        """The solutions, (sets, p_1, .., p_m, q)."""
        size = math.sqrt(self.samples) * max(ridge, FLOOR)
        return contracted(self.right, self.analysed * (self.sizes / (self.sizes * self.sizes + size * size)))

    def errors(self, values: Array, target: Array) -> Array:
        """The largest error at the samples, of each set."""
        found = np.abs(contracted(self.weights, values) - target)
        return found.reshape(len(found), -1).max(-1)
