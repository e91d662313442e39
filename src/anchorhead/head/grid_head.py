"""A head for several variables in one layer: softmax over a tensor grid of keys. It needs NumPy alone.

Axis i has p_i keys, key k scoring slope_k x_i + intercept_k. The key (k_1, .., k_m) of the grid scores the sum of its
axes' scores, and since the exponential of a sum is a product, the softmax over all p_1·…·p_m keys is the product of the
axes' softmaxes W^i:

    h(x) = sum over (k_1, .., k_m) of  W^1_{k_1}(x_1) · … · W^m_{k_m}(x_m) · V[k_1, .., k_m]

which costs one contraction of V after the other. `grid_fit.py` finds the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorhead.arithmetic import Array, softmax
from anchorhead.errors import InputError, ShapeError
from anchorhead.linear_algebra import product

GridFunction = Callable[[Array], Array]
"""(N, m) to (N, q)."""
Box = Sequence[tuple[float, float]]

MOST_AXES = 4
MOST_ENTRIES = 1 << 22
"""Entries of a temporary, 32 MB."""


class GridSizes:
    """How large a grid is, for its numbers and for its module."""

    slopes: Any
    values: Any

    @property
    def axes(self) -> int:
        """How many variables there are."""
        return len(self.slopes)

    @property
    def counts(self) -> tuple[int, ...]:
        """Keys of each axis."""
        return tuple(len(s) for s in self.slopes)

    @property
    def keys(self) -> int:
        """How many keys the grid has."""
        return math.prod(self.counts)

    @property
    def outputs(self) -> int:
        """How many numbers a value has."""
        return int(self.values.shape[-1])


@dataclass(frozen=True)
class GridHead(GridSizes):
    """slopes, intercepts: (p_i,) for each axis. values: (p_1, .., p_m, q). All float64."""

    slopes: tuple[Array, ...]
    intercepts: tuple[Array, ...]
    values: Array

    def __post_init__(self) -> None:
        counts = tuple(len(s) for s in self.slopes)
        if not counts or counts != tuple(len(c) for c in self.intercepts) or self.values.shape[:-1] != counts:
            raise ShapeError(
                f"A grid with values of shape {self.values.shape} needs slopes and intercepts for as many axes and "
                f"keys; slopes {counts} and intercepts {tuple(map(len, self.intercepts))} were given."
            )

    @property
    def largest_value(self) -> float:
        """The largest |value|, which decides how much rounding costs."""
        return float(np.abs(self.values).max())

    def weights(self, axis: int, u: Array) -> Array:
        """The softmax weights of one axis at points (n,), as (n, p_i)."""
        return np.ascontiguousarray(axis_weights(self.slopes[axis], self.intercepts[axis], u).T)

    def __call__(self, x: Array) -> Array:
        """h at points (..., m), in float64, as (..., q)."""
        flat = np.asarray(x, dtype=np.float64).reshape(-1, self.axes)
        rows = max(1, MOST_ENTRIES // (self.values.size // self.counts[0]))
        parts = [self._contract(flat[i : i + rows]) for i in range(0, len(flat), rows)]
        return np.concatenate([*parts, np.zeros((0, self.outputs))]).reshape(*np.shape(x)[:-1], self.outputs)

    def _contract(self, x: Array) -> Array:
        held = product(self.weights(0, x[:, 0]), self.values.reshape(self.counts[0], -1))
        for i in range(1, self.axes):
            weights = self.weights(i, x[:, i])
            held = np.add.reduce(weights[..., None] * held.reshape(len(x), self.counts[i], -1), 1)
        return held

    def on_lattice(self, points: Sequence[Array]) -> Array:
        """h at all combinations of the axes' points, (n_1, .., n_m, q)."""
        return contracted([self.weights(i, u) for i, u in enumerate(points)], self.values)

    def sides(self, box: Box) -> tuple[tuple[float, float], ...]:
        """The box as pairs of floats; refused unless it has a bounded side for each axis."""
        sides = checked_box(box)
        if len(sides) != self.axes:
            raise InputError(
                f"The box has {len(sides)} sides and the grid {self.axes} axes; give one side for each axis."
            )
        return sides

    def spread(self, axis: int, side: tuple[float, float]) -> float:
        """About the largest standard deviation of an axis' slopes under its weights."""
        slopes = self.slopes[axis]
        weights = axis_weights(slopes, self.intercepts[axis], np.linspace(*side, 257))
        mean = (weights * slopes[:, None]).sum(0)
        return float(np.sqrt(np.maximum((weights * (slopes * slopes)[:, None]).sum(0) - mean * mean, 0).max()))

    def rounded(self, dtype: str) -> GridHead:
        """The same head with every number rounded to the dtype."""

        def nearest(numbers: Array) -> Array:
            return numbers.astype(dtype).astype(np.float64)

        return GridHead(tuple(map(nearest, self.slopes)), tuple(map(nearest, self.intercepts)), nearest(self.values))


def axis_weights(slopes: Array, intercepts: Array, u: Array) -> Array:
    """The softmax weights of keys (..., p) at points (n,), as (..., p, n)."""
    return softmax(slopes[..., None] * u + intercepts[..., None])


def contracted(matrices: Sequence[Array | None], tensor: Array) -> Array:
    """The tensor (..., p_1, .., p_m, q) with axis i contracted with the i-th matrix (..., n_i, p_i), if there is one.

    Leading axes of the matrices or the tensor are so many contractions at once.
    """
    for i, matrix in enumerate(matrices):
        if matrix is not None:
            lead = tensor.ndim - len(matrices) - 1
            front = np.moveaxis(tensor, lead + i, lead)
            found = product(matrix, front.reshape(*front.shape[: lead + 1], -1))
            lead = found.ndim - 2
            tensor = np.moveaxis(found.reshape(*found.shape[:-1], *front.shape[-len(matrices) :]), lead, lead + i)
    return np.ascontiguousarray(tensor)


def checked_box(box: Box) -> tuple[tuple[float, float], ...]:
    """The box as pairs of floats; refused unless it has one to four bounded sides."""
    sides = tuple((float(low), float(high)) for low, high in box)
    if not 1 <= len(sides) <= MOST_AXES:
        raise InputError(f"A grid has 1 to {MOST_AXES} axes, and {len(sides)} were given: its keys grow like p^m.")
    for low, high in sides:
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(f"The side [{low}, {high}] of the box must be bounded, with its lower end first.")
    return sides
