"""All axes of a grid together: layouts searched jointly, values solved for with a ridge on each axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anchorhead.head.grid_axis import (
    AT_ONCE,
    BEYOND,
    CLOSE,
    MOVES,
    SEARCHED,
    AxisKeys,
    AxisLayout,
    cost,
    logarithms,
    slabs,
    stretched,
)

if TYPE_CHECKING:
    from anchorhead.head.grid_fit import Fitting

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from anchorhead.arithmetic import Array, exp, log, power
from anchorhead.descent import descend
from anchorhead.head.grid_head import MOST_ENTRIES, GridHead, axis_weights, contracted
from anchorhead.head.solve import FLOOR, samples
from anchorhead.linear_algebra import orthogonal

SEARCHED_ENTRIES = 1 << 18
"""Samples, times outputs, up to which layouts are searched for on the whole grid."""


class JointSearch:
    """The whole grid with given numbers of keys: values for layouts, and a descent in all layouts at once."""

    def __init__(self, fitting: Fitting, counts: Sequence[int], limit: float, goal: float) -> None:
        self.fitting, self.counts, self.goal = fitting, tuple(counts), goal
        extra = 1.4 if len(counts) < 4 else 1.0
        self.points = [samples(low, high, math.ceil(extra * k) + 6, np.zeros(0), flat_ends=False)
                       for (low, high), k in zip(fitting.box, counts, strict=True)]  # fmt: skip
        total = math.prod(len(u) for u in self.points)
        self.target = fitting.values_at(self.points) if total <= MOST_ENTRIES else None
        self.largest = limit * fitting.scale
        self.ridge = goal / (10 * self.largest)
        self.limit = limit

    def run(self, starts: Sequence[Sequence[AxisLayout]]) -> GridHead:
        """The head; for many samples the layout is that of a smaller grid, stretched."""
        if self.target is not None and self.target.size <= SEARCHED_ENTRIES:
            return self._limited(self._searched(starts))
        smaller = [max(2, math.floor(k * self._reduction())) if k > 2 else k for k in self.counts]
        model = JointSearch(self.fitting, smaller, self.limit, self.goal)
        few = [[self.fitting.layout(i, k, g) for i, k in enumerate(smaller)] for g in self.fitting.growths]
        curvatures, spacings = exp(model._searched(few)).T
        sizes = list(zip(spacings, smaller, self.counts, strict=True))
        same_keys_past = [stretched(h, a, b) for h, a, b in sizes]
        same_reach = [h * (a - 1) / (b - 1) if b > 1 else h for h, a, b in sizes]
        tried = [log(np.stack([curvatures, h], axis=1)) for h in (same_keys_past, same_reach)]
        if max(self.counts) <= SEARCHED:
            tried += [logarithms(layouts) for layouts in starts]
        return min((self._limited(t) for t in tried), key=self.fitting.error)

    def _reduction(self) -> float:
        """By what factor all axes must shrink for a search to be affordable."""
        outputs = self.fitting.outputs
        entries = outputs * math.prod(len(u) for u in self.points)
        return 0.9 * power(SEARCHED_ENTRIES / entries, 1 / len(self.counts))

    def _searched(self, starts: Sequence[Sequence[AxisLayout]]) -> Array:
        """Logarithms of curvature and spacing of each axis."""
        tries = int(min(30 * len(self.counts), 6e6 / next(self._target()).size))
        known = [logarithms(layouts) for layouts in starts] + self._usual()
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

    def _keys(self, several: Sequence[Array]) -> list[AxisKeys]:
        """Of each axis, for several sets of logarithms (axes, 2)."""
        sizes = exp(np.array(several))
        return [self.fitting.keys(i, k, sizes[:, i, 0], sizes[:, i, 1]) for i, k in enumerate(self.counts)]

    def _objectives(self, several: Sequence[Array]) -> list[float]:
        """What the layouts with these logarithms cost; as many at once as the memory of their values allows."""
        fair = [bool(p[:, 0].max() <= 4 and np.abs(p[:, 1]).max() <= 7) for p in several]
        among = [p for p, ok in zip(several, fair, strict=True) if ok]
        (target,) = self._target()  # few enough samples to be held at once
        together = max(1, AT_ONCE // target.size)
        found: list[tuple[float, float]] = []
        for start in range(0, len(among), together):
            problem = self._problem(self._keys(among[start : start + together]))
            values = problem.values(self.ridge)
            sizes = np.abs(values).reshape(len(values), -1).max(-1) / self.fitting.scale
            found += zip(problem.errors(values, target).tolist(), sizes.tolist(), strict=True)
        limit, listed = self.largest / self.fitting.scale, iter(found)
        return [cost(e, self.goal, size, limit) for e, size in (next(listed) if ok else BEYOND for ok in fair)]

    def _problem(self, keys: Sequence[AxisKeys]) -> TensorRidge:
        weights = [axis_weights(*axis, u) for axis, u in zip(keys, self.points, strict=True)]
        return TensorRidge(weights, self._target)

    def _target(self) -> Iterator[Array]:
        """f at the samples; what is not at hand is asked for slab by slab of the first axis."""
        if self.target is not None:
            yield self.target
        else:
            yield from (self.fitting.values_at([part, *self.points[1:]]) for part in slabs(self.points))

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


class TensorRidge:
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
