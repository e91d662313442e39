"""What evaluating a tensor grid of keys in floating point may add, for any order of summation.

The head is h(x) = sum over k of W^1_{k_1}(x_1)·…·W^m_{k_m}(x_m) V[k], W^i the softmax of slope_k x_i + intercept_k over
the keys of axis i. A_T(U^1, .., U^m) is the contraction of a tensor T with nonnegative matrices. An axis is cut into
cells with centre c and radius r; W are the weights at c, d_k = slope_k - (mean slope at c).

ρ is the unit roundoff; inputs and stored numbers are numbers of the dtype.

*Weights.* log W_k is concave in x with slope d_k at c (the mean slope grows with x), so W_k <= W_k(c) exp(|d_k| r) on
a cell. The score slope_k x + intercept_k errs by ρ(2|slope_k x| + |intercept_k|), its difference Δ_k to the largest by
ρΔ_k more (Δ_k is convex, so its largest value is at an end of the cell), and exp by 4ρ (2 units in the last place,
assumed). So the relative error ε_k of an exponential is at most expm1(ρ(2|slope_k x| + |intercept_k| + Δ_k + 4)·1.001).
Normalised exactly, they would give weights W' with |W'_k - W_k| <= W_k θ_k, θ_k = (ε_k + ω)/(1 - ω), ω = sum W_k ε_k.
Both sum to one, so W' - W is contracted with V_k - V_l, l the key that leads on the cell, which is small where values
change slowly.

*Sums.* Call n of the terms of a sum large. Adding b to a errs by at most ρ|a + b|, and by at most |b|, since a is
itself a float. In any order, additions of two sums that both hold a large term are fewer than n and err by
γ = nρ/(1 - nρ) times the sum S of absolute values in all; a small term joins a large one once. So a sum errs by
γ S + 2·(sum of the small terms). With weights below about ρ called small, the normaliser errs relatively by
χ = γ + 2·(their sum) + ρ, quotient included, and the sum with values by φ_k = γ + ρ + 2·[k small] of the k-th term,
product included.

*Fast evaluation.* Contracting axis i errs by κ_k = (1 + χ)(1 + φ_k) - 1 of the k-th term. With X = W(1 + θ)(1 + κ),

    |computed - exact| <= sum over i of  A_|V - V_l|(W(1+θ), .., Wθ, .., W(1+θ)) + A_|V|(X, .., Xκ, .., X)

where Wθ, Xκ and the difference to the leading key belong to axis i.

*Literal evaluation.* The score of a grid key is a sum of m products and a stored intercept, itself a rounded sum of m:
it errs by ρ times the sum over axes of (m+1)|slope_k x_i| + 2m|intercept_k|, and its difference to the largest by ρ
times the sum of the Δ^i (in a tensor grid the largest score is the sum of the axes' largest). So 1 + relative error is
a product over axes again, with θ_k = (1 + ε_k)(1 + ω) - 1, all divided by 1 - Ω, Ω = product(1 + ω_i) - 1. V_k - V_l
goes from k to the leading key l one axis after the other. There is one sum over all keys, and n is the number of grid
weights that may be large anywhere.

*Underflow* costs the least normal number for each of a few operations a key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorhead.arithmetic import Array, exp, expm1, power
from anchorhead.dtypes import NAMES, UNIT
from anchorhead.errors import InputError
from anchorhead.head.grid_head import Box, GridHead, axis_weights, contracted
from anchorhead.linear_algebra import product
from anchorhead.proof.rounding import LARGEST, LEAST_NORMAL

INFLATED = 1 + 1e-6
SECOND_ORDER = 1.001
MOST_CELLS = 1 << 20
STEEPEST = 1e8
"""Scores beyond this are too large for float64 to say anything of the weights."""


@dataclass(frozen=True)
class GridRounding:
    """Bounds on |computed - exact| over the box, for the fast and for the literal evaluation."""

    fast: float
    literal: float

    @property
    def bound(self) -> float:
        """What holds for both."""
        return max(self.fast, self.literal)


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


def rounding_bound(grid: GridHead, box: Box, dtype: str) -> GridRounding:
    """Bounds what evaluating the grid in the dtype adds, for inputs in the box; infinity if none was found.

    The grid's numbers must be those of the dtype (`GridHead.rounded`).
    """
    if dtype not in NAMES:
        raise InputError(f"dtype={dtype!r} is not one of {', '.join(NAMES)}.")
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = zip(grid.slopes, grid.intercepts, grid.sides(box), strict=True)
        steep = max(float(np.abs(s).max() * max(map(abs, side)) + np.abs(c).max()) for s, c, side in numbers)
        if not steep <= STEEPEST or not 16 * grid.keys * (1 + grid.largest_value) < LARGEST[dtype]:
            return GridRounding(math.inf, math.inf)
        axes = _rounding_cells(grid, box)
        lost = 16 * grid.keys * (1 + grid.largest_value) * LEAST_NORMAL[dtype]
        fast, literal = _fast(grid, axes, UNIT[dtype]), _literal(grid, axes, UNIT[dtype])
        return GridRounding((fast + lost) * INFLATED, (literal + lost) * INFLATED)


def _rounding_cells(grid: GridHead, box: Box) -> list[Cells]:
    """Cells on which scores of neighbouring keys move by at most about a half against each other."""
    sides = grid.sides(box)
    most = int(power(MOST_CELLS / grid.outputs, 1 / grid.axes) + 1e-9)
    found = []
    for s, c, (low, high) in zip(grid.slopes, grid.intercepts, sides, strict=True):
        step = float(np.abs(np.diff(s)).max()) if len(s) > 1 else 0.0
        found.append(Cells(s, c, (low, high), min(max(4, math.ceil(step * (high - low))), most)))
    return found


def worst_of(found: Array) -> float:
    worst = float(found.max())
    return worst if math.isfinite(worst) else math.inf


def _gamma(count: Array, unit: float) -> Array:
    share = count * unit
    return np.where(share < 0.5, share / np.maximum(1 - share, 0.5), np.inf)


def _fast(grid: GridHead, axes: Sequence[Cells], unit: float) -> float:
    """The bound for axis after axis, as derived above."""
    moved, lost, whole, grown = [], [], [], []
    for axis in axes:
        error, total = axis.errors(unit, 2, 1, 4)
        if not total.max() < 0.5:
            return math.inf
        theta = (error + total) / (1 - total)
        small = axis.largest < unit
        gamma = _gamma((~small).sum(-1, keepdims=True), unit)
        chi = gamma + 2 * (axis.largest * small).sum(-1, keepdims=True) + unit
        kappa = (1 + chi) * (1 + gamma + unit + 2 * small) - 1
        grown.append(axis.largest * (1 + theta))
        moved.append(axis.largest * theta)
        whole.append(grown[-1] * (1 + kappa))
        lost.append(whole[-1] * kappa)
    size = np.abs(grid.values)
    found: Any = 0.0
    for i, axis in enumerate(axes):
        apart = _differences(grid.values, i, moved[i], axis.leaders)
        found = found + contracted([*grown[:i], None, *grown[i + 1 :]], apart)
        found = found + contracted([*whole[:i], lost[i], *whole[i + 1 :]], size)
    return worst_of(found)


def _literal(grid: GridHead, axes: Sequence[Cells], unit: float) -> float:
    """The bound for one softmax over all keys, as derived above."""
    m = len(axes)
    grown, moved, total, largest = [], [], 1.0, grid.largest_value
    for axis in axes:
        error, share = axis.errors(unit, m + 1, 2 * m, 4 / m)
        theta = (1 + error) * (1 + share) - 1
        grown.append(axis.largest * (1 + theta))
        moved.append(axis.largest * theta)
        total *= 1 + float(share.max())
        largest *= 1 + float(theta.max())
    if not total < 1.5:
        return math.inf
    size, sums = contracted(grown, np.abs(grid.values)), np.array(np.inf)
    for count, rest in _large_and_small(axes, unit):
        gamma = float(_gamma(np.array(count), unit))
        chi = gamma + 2 * rest + unit
        kappa = (1 + chi) * (1 + gamma + unit) - 1
        sums = np.minimum(sums, kappa * size + 2 * (1 + chi) * rest * largest)
    return worst_of(sums + _moved(grid.values, axes, grown, moved)) / (2 - total)


def _large_and_small(axes: Sequence[Cells], unit: float) -> list[tuple[int, float]]:
    """How many weights of the grid may be large anywhere, and what the others may add up to, for a few thresholds.

    By the axes' weights in order of size, each the largest over all cells.
    """
    sizes = np.ones(1)
    for axis in axes:
        sizes = np.multiply.outer(sizes, np.sort(axis.largest, axis=-1).max(0)).ravel()
    sizes = np.sort(sizes)
    below, sums = np.searchsorted(sizes, unit / np.array([1.0, 1e2, 1e4, 1e6, 1e8])), np.append(0.0, np.cumsum(sizes))
    return [(len(sizes) - int(b), float(sums[b]) * INFLATED) for b in below]


def _differences(tensor: Array, i: int, weights: Array, leaders: Any) -> Array:
    """sum over k of weights[cell, k] |T[.., k, ..] - T[.., leader of the cell, ..]| along axis i, (.., cells, ..)."""
    front = np.moveaxis(tensor, i, 0)
    flat = front.reshape(len(front), -1)
    found = [product(w[None], np.abs(flat - flat[k])) for w, k in zip(weights, leaders, strict=True)]
    return np.moveaxis(np.concatenate(found).reshape(len(weights), *front.shape[1:]), 0, i)


def _moved(values: Array, axes: Sequence[Cells], grown: Sequence[Array], moved: Sequence[Array]) -> Array:
    """sum over k of W_k(product of (1 + θ^i_k) - 1)|V_k - V_l|, l the leading key of the cell.

    |V_k - V_l| goes from k to l one axis after the other, and θ lies on one axis after the other.
    """
    m = len(axes)
    found: Any = 0.0
    for i in range(m):
        for j in range(m):
            apart = _differences(values, i, moved[i] if i == j else grown[i], axes[i].leaders)
            after = [moved[k] if k == j else grown[k] for k in range(i + 1, m)]
            term = contracted([*[None] * (i + 1), *after], apart)
            for k in range(i):
                factor = (moved[k] if k == j else grown[k]).sum(-1)
                term = term * factor.reshape([-1 if n == k else 1 for n in range(term.ndim)])
            found = found + term
        values = np.take(values, axes[i].leaders, axis=i)
    return found
