"""The axes of a tensor grid cut into cells, which its rounding and its steepness are bounded on."""

from __future__ import annotations

import math

import numpy as np

from anchorhead.arithmetic import Array, exp, expm1
from anchorhead.errors import InputError
from anchorhead.head.grid_head import Box, GridHead, axis_weights, checked_box

INFLATED = 1 + 1e-6
SECOND_ORDER = 1.001


class Cells:
    """One axis cut into cells: centres c, radius r, weights and relative slopes there, (cells, keys)."""

    def __init__(self, slopes: Array, intercepts: Array, side: tuple[float, float], count: int) -> None:
        low, high = side
        edges = np.linspace(low, high, count + 1)
        self.slopes, self.intercepts = slopes, intercepts
        self.low, self.high, self.centres = edges[:-1], edges[1:], (edges[:-1] + edges[1:]) / 2
        self.radius = float((high - low) / (2 * count)) * (1 + 1e-12)
        self.size = float(max(abs(low), abs(high)))
        self.weights = np.ascontiguousarray(axis_weights(slopes, intercepts, self.centres).T)
        self.leaders = self.weights.argmax(-1)
        self.relative = slopes - (self.weights * slopes).sum(-1, keepdims=True)
        self.largest = np.minimum(1.0, self.weights * exp(np.abs(self.relative) * self.radius)) * INFLATED

    def behind(self) -> Array:
        """Δ_k: how far a key's score may lie below the largest on the cell."""
        ends = (np.multiply.outer(x, self.slopes) + self.intercepts for x in (self.low, self.high))
        return np.maximum(*(scores.max(-1, keepdims=True) - scores for scores in ends))

    def errors(self, unit: float, products: float, levels: float, fixed: float) -> tuple[Array, Array]:
        """ε_k of the exponentials, and ω, as (cells, keys) and (cells, 1)."""
        x = np.maximum(np.abs(self.low), np.abs(self.high))[:, None]
        size = products * np.abs(self.slopes) * x + levels * np.abs(self.intercepts) + self.behind() + fixed
        found = expm1(SECOND_ORDER * unit * size)
        return found, (self.largest * found).sum(-1, keepdims=True)


def sides_of(grid: GridHead, box: Box) -> tuple[tuple[float, float], ...]:
    sides = checked_box(box)
    if len(sides) != grid.axes:
        raise InputError(f"The box has {len(sides)} sides and the grid {grid.axes} axes; give one side for each axis.")
    return sides


def worst_of(found: Array) -> float:
    worst = float(found.max())
    return worst if math.isfinite(worst) else math.inf


def spread_of(slopes: Array, intercepts: Array, side: tuple[float, float]) -> float:
    """About the largest standard deviation of the slopes under the weights."""
    weights = axis_weights(slopes, intercepts, np.linspace(*side, 257))
    mean = (weights * slopes[:, None]).sum(0)
    return float(np.sqrt(np.maximum((weights * (slopes * slopes)[:, None]).sum(0) - mean * mean, 0).max()))
