"""Fits a tensor grid of keys (`grid_head.py`) to a function of several variables (constructions 2.1).

Each axis has keys with evenly spaced slopes and concave intercepts (`uniform.py`). One attention layer then
reproduces smooth functions of m variables with an error that falls geometrically in the number of keys of each axis.

*Values* are solved for axis by axis. Let W^i also be the matrix of the weights at the sample points of axis i. The
least squares problem over the grid of all samples has the matrix W^1 ⊗ … ⊗ W^m. With singular value decompositions
W^i = U^i S^i Q^i of the size of one axis, the problem with a ridge λ on all values at once has the solution

    V = (Q^1 ⊗ … ⊗ Q^m)^T  σ/(σ² + λ²)  (U^1 ⊗ … ⊗ U^m)^T f,    σ = products of the axes' singular values.

A ridge on each axis by itself would not do: what rounding leaves on one axis is rough along the next, which would
amplify it again.

*Curvature and spacing* are searched for on each axis by itself, on a few slices of f along it. An axis may make
values larger than f by the m-th root of what the limit leaves, so that all together stay within it. If values
exceed the limit nevertheless, ridges grow until they do not.

Nothing here is trusted: errors are those at samples. The certificate decides.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from anchorhead.errors import InputError, ShapeError
from anchorhead.heads.fitting import samples
from anchorhead.heads.grid_head import MOST_ENTRIES, Box, GridFunction, GridHead, checked_box, contracted
from anchorhead.heads.head import Array, Head
from anchorhead.heads.uniform import uniform_keys

MOST_KEYS = 1 << 20
MOST_ON_AXIS = 1 << 10
SLICES = 10
SEARCHED_ENTRIES = 1 << 18
"""Samples, times outputs, up to which layouts are searched for on the whole grid."""
SEARCHED = 48
"""Beyond this many keys on an axis the layout is that of this many, stretched, with a few curvatures tried."""
QUIET = 4.0
"""Where the error stays above the goal, f is not smooth for so few keys, and values of this size may serve better."""
FLOOR = 4e-16
"""The smallest ridge: below it, rounding decides the values."""


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
        return _smallest(_Fitting(f, box, tol / 4, limit), tol, most)


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
        self.goal = max(self.goal, 1e-15 * self.scale)

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

    def keys(self, axis: int, count: int, curvature: float, spacing: float) -> Head:
        """Keys only, values zero."""
        low, high = self.box[axis]
        radius = (high - low) / 2
        step = 2 * curvature / (spacing * radius) if count > 1 else 1.0
        return uniform_keys(count, step, curvature, (low + high) / 2)

    def layout(self, axis: int, count: int, growth: float) -> _Layout:
        """The best keys found for an axis whose values may be `growth` times as large as f."""
        found = self.known.get((axis, count, growth))
        if found is None:
            found = self.known[axis, count, growth] = _Search(self, axis, count, growth).run()
        return found

    @property
    def growths(self) -> tuple[float, float]:
        """What each axis may make of f: its share of the limit, and less, since axes can amplify each other."""
        share = max(4.0, self.limit ** (1 / self.axes))
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
        share = (min(max(most, 8 * head.keys), MOST_ENTRIES) / head.keys) ** (1 / self.axes)
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
    return math.log(max(error, goal / 8)) + 0.1 * math.log(max(1.0, size)) + 2 * math.log(beyond)


class _Ridge:
    """Least squares with a ridge, for any number of right sides: [W; λ] = QR, values = R⁻¹ Q^T [target; 0]."""

    def __init__(self, weights: Array, ridge: float) -> None:
        samples_, keys = weights.shape
        size = math.sqrt(samples_) * max(ridge, FLOOR)
        q, self.r = np.linalg.qr(np.vstack([weights, size * np.eye(keys)]))
        self.q = q[:samples_]

    def __call__(self, target: Array) -> Array:
        """(samples, ...) to (keys, ...)."""
        found: Array = solve_triangular(self.r, self.q.T @ target.reshape(len(target), -1), check_finite=False)
        return found.reshape(-1, *target.shape[1:])


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
        spacings = np.geomspace(0.1, 6, 12) * min(1, 4 / self.count)
        grid = itertools.product(np.geomspace(0.02, 4, 10), spacings)
        starts = sorted((self._objective(c, h, self.thin), c, h) for c, h in grid)[:2]
        _, c, h = min(self._descend(start) for start in starts)
        return self._layout(c, h)

    def _stretched(self) -> _Layout:
        """The layout of fewer keys, as many of them past the ends, for a few curvatures."""
        model = self.fitting.layout(self.axis, SEARCHED, self.growth)
        h = _stretched(model.spacing, SEARCHED, self.count)
        factors = (0.25, 0.5, 1.0, 2.0, 4.0) if self.count <= 4 * SEARCHED else (1.0,)
        tried = [model.curvature * s for s in factors]
        _, c = min((self._objective(c, h, self.thin), c) for c in tried)
        return self._layout(c, h)

    def _layout(self, curvature: float, spacing: float) -> _Layout:
        return _Layout(curvature, spacing, self._error(curvature, spacing, self.fine)[0])

    def _error(self, curvature: float, spacing: float, on: tuple[Array, Array]) -> tuple[float, float]:
        """The largest error on the slices, and the largest value in units of f."""
        u, target = on
        weights = self.fitting.keys(self.axis, self.count, curvature, spacing).weights(u)
        values = _Ridge(weights, self.ridge)(target)
        return float(np.abs(weights @ values - target).max()), float(np.abs(values).max()) / self.fitting.scale

    def _objective(self, curvature: float, spacing: float, on: tuple[Array, Array]) -> float:
        if not (1e-3 < curvature < 60 and 1e-6 < spacing < 1e3):
            return math.inf
        error, size = self._error(curvature, spacing, on)
        return _cost(error, self.fitting.goal, size, self.growth)

    def _descend(self, start: tuple[float, float, float]) -> tuple[float, float, float]:
        """Nelder-Mead in the logarithms."""
        _, c, h = start
        x, y = math.log(c), math.log(h)
        simplex = np.array([[x, y], [x + 0.2, y], [x, y + 0.1]])
        found = minimize(lambda p: self._objective(math.exp(p[0]), math.exp(p[1]), self.fine), simplex[0],
                         method="Nelder-Mead", options={"maxfev": 40, "initial_simplex": simplex})  # fmt: skip
        return float(found.fun), math.exp(found.x[0]), math.exp(found.x[1])


def _logarithms(layouts: Sequence[_Layout]) -> Array:
    return np.log([[max(a.curvature, 1e-9), a.spacing] for a in layouts])


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
            return self._limited(self._keys(self._searched(starts)))
        smaller = [max(2, math.floor(k * self._reduction())) if k > 2 else k for k in self.counts]
        model = _Joint(self.fitting, smaller, self.limit, self.goal)
        few = [[self.fitting.layout(i, k, g) for i, k in enumerate(smaller)] for g in self.fitting.growths]
        curvatures, spacings = np.exp(model._searched(few)).T
        sizes = list(zip(spacings, smaller, self.counts, strict=True))
        same_keys_past = [_stretched(h, a, b) for h, a, b in sizes]
        same_reach = [h * (a - 1) / (b - 1) if b > 1 else h for h, a, b in sizes]
        tried = [np.log(np.stack([curvatures, h], axis=1)) for h in (same_keys_past, same_reach)]
        if max(self.counts) <= SEARCHED:
            tried += [_logarithms(layouts) for layouts in starts]
        return min((self._limited(self._keys(t)) for t in tried), key=self.fitting.error)

    def _reduction(self) -> float:
        """By what factor all axes must shrink for a search to be affordable."""
        outputs = self.fitting.outputs
        return float(
            0.9 * (SEARCHED_ENTRIES / (outputs * math.prod(len(u) for u in self.points))) ** (1 / len(self.counts))
        )

    def _searched(self, starts: Sequence[Sequence[_Layout]]) -> Array:
        """Logarithms of curvature and spacing of each axis."""
        assert self.target is not None
        tries = int(min(30 * len(self.counts), 6e6 / self.target.size))
        ranked = sorted([_logarithms(layouts) for layouts in starts] + self._usual(), key=self._objective)
        if tries < 8:
            return ranked[0]
        found = [self._descend(start, tries, together=True) for start in ranked[:3]]
        _, best = min(found, key=lambda pair: pair[0])
        return self._descend(best, tries)[1]

    def _usual(self) -> list[Array]:
        """Layouts that often serve: curvatures from 0.2 to 0.8, and 1 to 4 keys past each end."""
        past = [[1 / max(0.5, (k - 1) / 2 - over) for k in self.counts] for over in (1, 2, 3, 4)]
        return [np.log([[c, h] for h in spacings]) for spacings in past for c in (0.2, 0.35, 0.8)]

    def _descend(self, start: Array, tries: int, together: bool = False) -> tuple[float, Array]:
        """Nelder-Mead in the logarithms, each axis by itself or all `together`."""
        steps = np.array([0.15, 0.08])
        moves = np.array([start * 0 + np.diag(steps)[i] for i in range(2)])
        if not together:
            moves = np.diag(np.tile(steps, len(start))).reshape(-1, *start.shape)

        def moved(amounts: Array) -> Array:
            return start + np.tensordot(amounts, moves, (0, 0))

        simplex = np.vstack([np.zeros(len(moves)), np.eye(len(moves))])
        found = minimize(lambda amounts: self._objective(moved(amounts)), simplex[0], method="Nelder-Mead",
                         options={"maxfev": tries, "initial_simplex": simplex})  # fmt: skip
        return float(found.fun), moved(found.x)

    def _keys(self, parameters: Array) -> list[Head]:
        sizes = np.exp(parameters)
        return [self.fitting.keys(i, k, *sizes[i]) for i, k in enumerate(self.counts)]

    def _objective(self, parameters: Array) -> float:
        if self.target is None or parameters[:, 0].max() > 4 or np.abs(parameters[:, 1]).max() > 7:
            return math.inf
        problem = _TensorRidge(self._weights(self._keys(parameters)), self._target)
        values = problem.values(self.ridge)
        error = problem.error(values, self.target)
        size = float(np.abs(values).max())
        return _cost(error, self.goal, size / self.fitting.scale, self.largest / self.fitting.scale)

    def _weights(self, keys: Sequence[Head]) -> list[Array]:
        return [k.weights(u) for k, u in zip(keys, self.points, strict=True)]

    def _target(self) -> Iterator[Array]:
        """f at the samples; what is not at hand is asked for slab by slab of the first axis."""
        if self.target is not None:
            yield self.target
        else:
            yield from (self.fitting.values_at([part, *self.points[1:]]) for part in _slabs(self.points))

    def _limited(self, keys: Sequence[Head]) -> GridHead:
        """Values within the limit: the ridge grows until they are, and further where the error does not mind."""
        problem = _TensorRidge(self._weights(keys), self._target)
        ridge, enough, best = max(self.ridge, FLOOR), self.goal / 2, None
        for _ in range(40):
            values = problem.values(ridge)
            if np.abs(values).max() <= self.largest:
                if self.target is None:
                    best = values
                    break
                error = problem.error(values, self.target)
                if best is None:
                    enough = max(enough, 1.2 * error)
                elif error > enough:
                    break
                best = values
            ridge *= 8
        values = values if best is None else best
        return GridHead(tuple(k.slopes for k in keys), tuple(k.intercepts for k in keys), values)


class _TensorRidge:
    """Least squares over the grid of samples with a ridge; see the top. target: slabs of the first axis, in order."""

    def __init__(self, weights: Sequence[Array], target: Callable[[], Iterator[Array]]) -> None:
        self.weights = weights
        found = [np.linalg.svd(w, full_matrices=False) for w in weights]
        left, self.right = [u.T for u, _, _ in found], [q.T for _, _, q in found]
        slabs = [contracted([None, *left[1:]], slab) for slab in target()]
        self.analysed = contracted(left[:1], np.concatenate(slabs) if len(slabs) > 1 else slabs[0])
        self.singular = functools.reduce(np.multiply.outer, [s for _, s, _ in found])[..., None]
        self.samples = math.prod(len(w) for w in weights)

    def values(self, ridge: float) -> Array:
        """The solution, (p_1, .., p_m, q)."""
        size = math.sqrt(self.samples) * max(ridge, FLOOR)
        return contracted(self.right, self.analysed * (self.singular / (self.singular**2 + size * size)))

    def error(self, values: Array, target: Array) -> float:
        """The largest error at the samples."""
        return float(np.abs(contracted(self.weights, values) - target).max())
