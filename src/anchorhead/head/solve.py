"""Solving for the values of a head whose keys are fixed: least squares, then minimax.

With the weights W_k(u) known, h(u) = sum W_k(u) (constant_k + gain_k u) is linear in the unknown values. Least
squares on sample points gives nearly the smallest error; Lawson's iteration (weights multiplied by the size
of the residual, again and again) turns it into the smallest *largest* error. A ridge keeps values below a limit:
a value of that size costs about as much as a tenth of the tolerance.

*Relative errors.* Residuals are divided by |f|, and a value is measured by the most that it brings to h, weight times
value over |f|. So the limit keeps small what has to cancel, over however many decades f goes: rounding is small then.

Nothing here is trusted: between sample points an approximant can miss. The certificate decides. All of it is
arithmetic that is the same on every machine (`arithmetic.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchorhead.arithmetic import Array, cos, geometric, log_of, sinh, softmax
from anchorhead.head.head import Head
from anchorhead.linear_algebra import least_squares

Function = Callable[[Array], Array]
AT_ONCE = 1 << 15
"""Numbers of the designs that are solved for at once."""
MANY = 16
"""Of more keys than this, layouts are compared on few points."""
AGAIN = 30
"""Layouts that are tried where a similar one is known."""
FLOOR = 4e-16
"""The smallest ridge: below it, rounding decides the values."""


@dataclass(frozen=True)
class Affine:
    """The asymptote constant + gain·u, which pins the outermost key on a side that extends to infinity."""

    constant: float
    gain: float


@dataclass(frozen=True)
class Problem:
    """What a head is fitted to.

    points and target: samples. left, right: asymptotes, on sides that extend to infinity. affine: values may
    be affine in u. goal: the error worth reaching. limit: how large a value may be. centre:
    where the middle key belongs. relative: errors in units of |target|.
    """

    points: Array
    target: Array
    left: Affine | None
    right: Affine | None
    affine: bool
    goal: float
    limit: float
    centre: float
    relative: bool = False

    def thinned(self, keys: int) -> Problem:
        """The same problem on a third of the points, or ten a key, ends included: enough to choose where to look."""
        apart = max(3, len(self.points) // (10 * keys)) if keys > MANY else 3
        kept = np.unique(np.append(np.arange(0, len(self.points), apart), len(self.points) - 1))
        return replace(self, points=self.points[kept], target=self.target[kept])

    @property
    def pinned(self) -> bool:
        """Whether the outermost keys follow asymptotes."""
        return self.left is not None or self.right is not None

    @property
    def radius(self) -> float:
        return float(self.points[-1] - self.points[0]) / 2

    def measured(self, errors: Array) -> Array:
        """Numbers at the samples, (..., samples), in the units of the error."""
        return errors / np.abs(self.target) if self.relative else errors


class Crowd(NamedTuple):
    """Where keys crowd, and at which scale the target is smooth there."""

    place: float
    scale: float


def least_keys(problem: Problem) -> int:
    """Fewer keys than this cannot come closer than the goal to the target at the samples.

    A head less a constant c is a sum of terms (a + b u) exp(s u), one for each key, over something positive: with K
    different slopes it has at most 2K - 1 zeros, or K - 1 if values are constant (G. Pólya, G. Szegő, *Problems and
    Theorems in Analysis II*, part V, 75). A target that is above c + goal and below c - goal in turn, m times, makes it
    change its sign m - 1 times.
    """
    low, high = float(problem.target.min()), float(problem.target.max())
    turns = 0
    for share in (0.2, 0.35, 0.5, 0.65, 0.8):
        off = problem.target - (low + share * (high - low))
        signs = np.sign(off[problem.measured(np.abs(off)) > problem.goal])
        turns = max(turns, int(np.count_nonzero(np.diff(signs))))
    return (turns + 2) // 2 if problem.affine else turns + 1


def sample_count(keys: int) -> int:
    """How many points of each kind a head of so many keys is fitted on."""
    return 16 * keys + 60 if keys <= MANY else 6 * keys + 220


def samples(low: float, high: float, count: int, extra: Array, *, flat_ends: bool,
            crowds: Sequence[Crowd] = (), centre: float = 0.0) -> Array:  # fmt: skip
    """Points to fit on, in order; `extra` are points that the target needs, or that a failed proof pointed at.

    crowds: where the keys crowd, and more points are put too.

    On an interval: Chebyshev points, which crowd at the ends, and evenly spaced ones. With `flat_ends`, where f
    settles on asymptotes towards the ends: points that thin out from the centre like sinh.
    """
    if flat_ends:
        bend = 4.0
        spread = np.linspace(-1, 1, 2 * count)
        outward = sinh(bend * spread)
        outward = outward / outward[-1]
        points = centre + np.where(outward < 0, -outward * min(low - centre, 0.0), outward * max(high - centre, 0.0))
        points = np.concatenate([points, np.linspace(low, high, count // 2)])
    else:
        angles = cos(np.pi * (np.arange(count, 0, -1) - 0.5) / count)
        points = np.concatenate([(low + high) / 2 + (high - low) / 2 * angles, np.linspace(low, high, count // 2)])
    for crowd in crowds:
        around = geometric(min(1e-7 * (high - low), crowd.scale / 8), high - low, count)
        points = np.concatenate([points, crowd.place + around, crowd.place - around, [crowd.place]])
    points = np.concatenate([points, extra, [low, high]])
    return np.unique(points[(points >= low) & (points <= high)] + 0.0)  # one zero, not two


class Keys(NamedTuple):
    """Several sets of keys, (sets, keys) each: slopes, intercepts, where each key has most weight, and how widely."""

    slopes: Array
    intercepts: Array
    anchors: Array
    widths: Array


class Found(NamedTuple):
    """A head, its largest error on the samples, and its layout, from where a search for a similar one can begin."""

    error: float
    head: Head
    layout: Array | None


def solve(keys: Keys, problem: Problem, *, horner: bool) -> tuple[float, Head]:
    """The head with these slopes and intercepts (of one set) and the best values, and its error on the samples."""
    slopes, intercepts = keys.slopes[0], keys.intercepts[0]
    weights, constants, gains, free = _pinned(keys, problem)
    lines = constants[:, None] + gains[:, None] * problem.points
    rest = problem.measured(problem.target - np.add.reduce(weights[0] * lines, 0))
    if free.any():
        design, units = _design(weights, free, keys, problem)
        found = minimax(design[0], rest, problem, 40 if len(free) <= MANY else 25)
        values = _values(found * units, free, keys, problem)
        constants[free], gains[free] = values[0][0], values[1][0]
        lines = constants[:, None] + gains[:, None] * problem.points
        rest = problem.measured(problem.target - np.add.reduce(weights[0] * lines, 0))
    head = Head.of(slopes=slopes, intercepts=intercepts, constants=constants, gains=gains, horner=horner)
    return float(np.abs(rest).max()), head


def costs(keys: Keys, problem: Problem, *, local: bool = False) -> Iterator[float]:
    """What each set of keys is judged by: log of the largest error on the samples, and of values beyond the limit.

    local: values count as what they are where a key has weight; where a target is steep, gains must be. A few sets
    are solved for at once, which is faster than one by one.
    """
    unknowns = keys.slopes.shape[1] * (2 if problem.affine else 1)
    together = max(1, AT_ONCE // (unknowns * len(problem.points)))
    for start in range(0, len(keys.slopes), together):
        part = Keys(*(numbers[start : start + together] for numbers in keys))
        weights, constants, gains, free = _pinned(part, problem)
        lines = constants[:, None] + gains[:, None] * problem.points
        rest = problem.measured(problem.target - np.add.reduce(weights * lines, -2))
        sizes = np.full(len(weights), max(np.abs(constants).max(), np.abs(gains).max()))
        if free.any():
            design, units = _design(weights, free, part, problem)
            found = _ridge(design, rest, np.ones(rest.shape[-1]), problem)
            rest = rest - np.add.reduce(design * found[..., None], -2)
            values = (found,) if local or problem.relative else _values(found * units, free, part, problem)
            sizes = np.maximum.reduce([sizes, *(np.abs(part).max(-1) for part in values)])
        for error, size in zip(np.abs(rest).max(-1), sizes, strict=True):
            excess = max(1.0, float(size) / problem.limit)
            yield log_of(float(error) + problem.goal * 1e-3) + 2 * log_of(excess)


def _pinned(keys: Keys, problem: Problem) -> tuple[Array, Array, Array, NDArray[np.bool_]]:
    """Weights (sets, keys, samples) of keys without gates; constants and gains of pinned keys; which are free."""
    weights = softmax(keys.slopes[..., None] * problem.points + keys.intercepts[..., None])
    count = keys.slopes.shape[1]
    constants, gains, free = np.zeros(count), np.zeros(count), np.ones(count, dtype=bool)
    for index, pinned in ((0, problem.left), (-1, problem.right)):
        if pinned is not None:
            constants[index], gains[index], free[index] = pinned.constant, pinned.gain, False
    return weights, constants, gains, free


def _design(weights: Array, free: NDArray[np.bool_], keys: Keys, problem: Problem) -> tuple[Array, Array]:
    """What multiplies the unknowns, (..., unknowns, samples), and their units, (..., unknowns).

    A key's line is measured where it has weight: its value at the anchor, and what it gains over the key's width. So
    the ridge sees sizes that matter, and digits are not lost to lines that cancel far away. Lines that follow
    asymptotes are measured at u = 0.
    """
    rows = weights[..., free, :]
    if problem.affine and problem.pinned:
        rows = np.concatenate([rows, rows * problem.points], axis=-2)
    elif problem.affine:
        anchors, widths = keys.anchors[..., free, None], keys.widths[..., free, None]
        rows = np.concatenate([rows, rows * ((problem.points - anchors) / widths)], axis=-2)
    if not problem.relative:
        return rows, np.ones(rows.shape[:-1])
    rows = problem.measured(rows)
    units = 1 / np.maximum(np.abs(rows).max(-1), 1e-200)
    return rows * units[..., None], units


def _values(found: Array, free: NDArray[np.bool_], keys: Keys, problem: Problem) -> tuple[Array, Array]:
    """Constants and gains, (sets, free keys), of the unknowns."""
    count = int(free.sum())
    constants, gains = found[:, :count], found[:, count:] if problem.affine else np.zeros((len(found), count))
    if not problem.affine or problem.pinned:
        return constants, gains
    gains = gains / keys.widths[:, free]
    return constants - gains * keys.anchors[:, free], gains


def minimax(design: Array, rest: Array, problem: Problem, steps: int) -> Array:
    weights, best_error = np.ones(len(rest)), np.inf
    best = found = _ridge(design, rest, weights, problem)
    for step in range(steps):
        found = _ridge(design, rest, weights, problem) if step else found
        errors = np.abs(rest - np.add.reduce(design * found[:, None], 0))
        largest = errors.max()
        if largest < best_error:
            best, best_error = found, largest
        if largest == 0:
            break
        weights = weights * (errors / largest)
        if not weights.sum() > 0:
            break
        weights = weights * (len(weights) / weights.sum())
        if np.sqrt((weights * errors * errors).mean()) > 0.98 * largest:
            break
    return best


def _ridge(design: Array, rest: Array, weights: Array, problem: Problem) -> Array:
    """The values, (..., unknowns), for designs (..., unknowns, samples) and rests (..., samples)."""
    unknowns = design.shape[-2]
    ridge = max(problem.goal / (10 * problem.limit), FLOOR) * np.ones(unknowns)
    root = np.sqrt(weights)
    if not (np.isfinite(rest).all() and np.isfinite(design).all()):
        raise np.linalg.LinAlgError("the target or the keys are not finite at a sample")
    if np.abs(rest).max() < 1e-250:
        return np.zeros(design.shape[:-1])
    return least_squares(design * root, (rest * root)[..., None, :], np.sqrt(len(weights)) * ridge)[..., 0]
