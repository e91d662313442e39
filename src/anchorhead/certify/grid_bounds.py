"""What a tensor grid of keys keeps: rounding, a bound from samples and a Lipschitz constant, and a proof on boxes.

The head is h(x) = sum over k of W^1_{k_1}(x_1)·…·W^m_{k_m}(x_m) V[k], W^i the softmax of slope_k x_i + intercept_k over
the keys of axis i. A_T(U^1, .., U^m) is the contraction of a tensor T with nonnegative matrices. For the first two an
axis is cut into cells with centre c and radius r; W are the weights at c, d_k = slope_k - (mean slope at c).

**Rounding** (`rounding_bound`). ρ is the unit roundoff; inputs and stored numbers are numbers of the dtype.

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

**Lipschitz constant** (`lipschitz_bound`). W_k(c + t) = W_k exp(d_k t)/M(t), M(t) = sum W_k exp(d_k t) >= 1 (Jensen).
For complex t = a + ib with |t| <= R, |M(t)| >= M(a)(1 - b²·variance/2), and the variance of slopes at c + a is at most
s² = sum W_k d_k² exp(|d_k| R). So |W_k(c + t)| <= B_k = W_k exp(|d_k| R)/(1 - R²s²/2), and by Cauchy's inequality the
j-th Taylor coefficient of W_k is at most B_k/R^j. With P_k the Taylor polynomial of J terms and q = r/R, the rest is at
most B_k q^J/(1 - q), and its derivative at most B_k/r times the sum over j >= J of j q^j. V, less a constant,
contracted with the axes' Taylor coefficients gives those of h, cancellation included; on a cell

    |∂h/∂x_i| <= sum over α of α_i/r_i |h_α| r^α + A(|rest^i'|, W̄, ..) + sum over j != i of A(|P^i'|, |rest^j|, W̄, ..)

with A = A_|V| and W̄ = |P| + |rest|. This is done in float64 and inflated by 1e-6; the rounding of coefficients is
covered by adding 1e-12 times the same sums with B_k/R^j for the coefficients.

**Conditional bound** (`conditional_bound`). If |f(x) - f(y)| <= L|x - y| and every point of the box is within r of a
sample, then sup |f - h| <= (largest sampled |f - h|) + (L + Lip h) r. The rounding of the sampled h is added.

**Proof** (`prove_grid`), in ball arithmetic. On a box with centre c and radii r, multiply numerator and denominator of
the axes' softmaxes by the same exponentials: E_k(t) = W_k exp(d_k t), t = x_i - c_i, D_i = sum E_k, which is at least
1 but for rounding (Jensen), N = A_V(E^1, .., E^m), D the product of the D_i, h = N/D. For f take its Taylor polynomial
P at c, |f - P| <= ε on the box (`directional_jet`; P's mixed coefficients come from series along enough directions, by
an exact inverse). Then

    |f - h| <= |P·D - N|/D + ε.

E_k has the coefficients W_k d_k^j/j! and, after K of them, a rest of at most W_k |d_k r|^K/K!·exp(|d_k| r). So P·D - N
is a polynomial of K^m terms and a rest, which contractions of absolute values bound. Its terms cancel to the size of
the error, and Chebyshev's polynomials instead of powers keep them so: the error swings with the distance of keys, and a
sum of |coefficients| in powers of t would exceed its range exponentially in the width of the box. Boxes are cut
along the axis that moves the bound most until all keep the goal; a centre whose error exceeds it refutes the head.
The oldest box goes first, so that such a centre is met before its surroundings are cut to pieces.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from flint import arb, arb_mat, fmpq, fmpq_mat
from threadpoolctl import threadpool_limits

from anchorhead.certify.rounding import LARGEST, LEAST_NORMAL
from anchorhead.certify.statement import ball, precision, upper
from anchorhead.errors import InputError
from anchorhead.expression.directional import directional_jet
from anchorhead.expression.graph import Expression
from anchorhead.heads.head import Array
from anchorhead.heads.tensor_grid import Box, GridFunction, GridHead, checked_box, contracted, softmax

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24}
INFLATED = 1 + 1e-6
SLOP = 1e-12
SECOND_ORDER = 1.001
MOST_CELLS = 1 << 20
MOST_ENTRIES = 1 << 21
"""Entries of a temporary, 16 MB."""
MOST_TERMS = 1 << 30
"""Taylor coefficients that a Lipschitz constant is worth."""
MOST_ON_AXIS = 4096
RATIO = 0.2
"""q: a cell's radius over that of the discs on which weights are bounded."""
MOST_BOXES = 40_000
ORDERS = {1: (12, 16), 2: (12, 14), 3: (12, 9), 4: (8, 6)}
"""Terms of the Taylor series of the target, at most, and of the head, by the number of axes."""
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


@dataclass(frozen=True)
class Conditional:
    """sup |f - h| <= bound, if the declared Lipschitz constant of f is right.

    measured: the largest |f - h| at the samples, h's rounding included. lipschitz_head: proved for h. radius: every
    point of the box is at most this far from a sample. samples: how many there are.
    """

    bound: float
    measured: float
    lipschitz_head: float
    radius: float
    samples: int


class _Cells:
    """One axis cut into cells: centres c, radius r, weights and relative slopes there, (cells, keys)."""

    def __init__(self, slopes: Array, intercepts: Array, side: tuple[float, float], count: int) -> None:
        low, high = side
        edges = np.linspace(low, high, count + 1)
        self.slopes, self.intercepts = slopes, intercepts
        self.low, self.high, self.centres = edges[:-1], edges[1:], (edges[:-1] + edges[1:]) / 2
        self.radius = float((high - low) / (2 * count)) * (1 + 1e-12)
        self.size = float(max(abs(low), abs(high)))
        self.weights = softmax(np.multiply.outer(self.centres, slopes) + intercepts)
        self.leaders = self.weights.argmax(-1)
        self.relative = slopes - (self.weights @ slopes)[:, None]
        self.largest = np.minimum(1.0, self.weights * np.exp(np.abs(self.relative) * self.radius)) * INFLATED

    def behind(self) -> Array:
        """Δ_k: how far a key's score may lie below the largest on the cell."""
        ends = (np.multiply.outer(x, self.slopes) + self.intercepts for x in (self.low, self.high))
        return np.maximum(*(scores.max(-1, keepdims=True) - scores for scores in ends))

    def errors(self, unit: float, products: float, levels: float, fixed: float) -> tuple[Array, Array]:
        """ε_k of the exponentials, and ω, as (cells, keys) and (cells, 1)."""
        x = np.maximum(np.abs(self.low), np.abs(self.high))[:, None]
        size = products * np.abs(self.slopes) * x + levels * np.abs(self.intercepts) + self.behind() + fixed
        found = np.expm1(SECOND_ORDER * unit * size)
        return found, (self.largest * found).sum(-1, keepdims=True)


def rounding_bound(grid: GridHead, box: Box, dtype: str) -> GridRounding:
    """Bounds what evaluating the grid in the dtype adds, for inputs in the box; infinity if none was found.

    The grid's numbers must be those of the dtype (`GridHead.rounded`).
    """
    if dtype not in UNIT:
        raise InputError(f"dtype={dtype!r} is not one of {', '.join(UNIT)}.")
    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        axes = _rounding_cells(grid, box)
        steep = max(float(np.abs(a.slopes).max() * a.size + np.abs(a.intercepts).max()) for a in axes)
        if steep > STEEPEST or not 16 * grid.keys * (1 + grid.largest_value) < LARGEST[dtype]:
            return GridRounding(math.inf, math.inf)
        lost = 16 * grid.keys * (1 + grid.largest_value) * LEAST_NORMAL[dtype]
        fast, literal = _fast(grid, axes, UNIT[dtype]), _literal(grid, axes, UNIT[dtype])
        return GridRounding((fast + lost) * INFLATED, (literal + lost) * INFLATED)


def _rounding_cells(grid: GridHead, box: Box) -> list[_Cells]:
    """Cells on which scores of neighbouring keys move by at most about a half against each other."""
    sides = _sides(grid, box)
    most = int((MOST_CELLS / grid.outputs) ** (1 / grid.axes))
    found = []
    for s, c, (low, high) in zip(grid.slopes, grid.intercepts, sides, strict=True):
        step = float(np.abs(np.diff(s)).max()) if len(s) > 1 else 0.0
        found.append(_Cells(s, c, (low, high), min(max(4, math.ceil(step * (high - low))), most)))
    return found


def _sides(grid: GridHead, box: Box) -> tuple[tuple[float, float], ...]:
    sides = checked_box(box)
    if len(sides) != grid.axes:
        raise InputError(f"The box has {len(sides)} sides and the grid {grid.axes} axes; give one side for each axis.")
    return sides


def _gamma(count: Array, unit: float) -> Array:
    share = count * unit
    return np.where(share < 0.5, share / np.maximum(1 - share, 0.5), np.inf)


def _worst(found: Array) -> float:
    worst = float(found.max())
    return worst if math.isfinite(worst) else math.inf


def _fast(grid: GridHead, axes: Sequence[_Cells], unit: float) -> float:
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
    return _worst(found)


def _literal(grid: GridHead, axes: Sequence[_Cells], unit: float) -> float:
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
    return _worst(sums + _moved(grid.values, axes, grown, moved)) / (2 - total)


def _large_and_small(axes: Sequence[_Cells], unit: float) -> list[tuple[int, float]]:
    """How many weights of the grid may be large anywhere, and what the others may add up to, for a few thresholds.

    By the axes' weights in order of size, each the largest over all cells.
    """
    sizes = np.ones(1)
    for axis in axes:
        sizes = np.multiply.outer(sizes, np.sort(axis.largest, axis=-1).max(0)).ravel()
    sizes = np.sort(sizes)
    below, sums = np.searchsorted(sizes, unit / 100.0 ** np.arange(5)), np.append(0.0, np.cumsum(sizes))
    return [(len(sizes) - int(b), float(sums[b]) * INFLATED) for b in below]


def _differences(tensor: Array, i: int, weights: Array, leaders: Any) -> Array:
    """sum over k of weights[cell, k] |T[.., k, ..] - T[.., leader of the cell, ..]| along axis i, (.., cells, ..)."""
    front = np.moveaxis(tensor, i, 0)
    found = [np.tensordot(w, np.abs(front - front[k]), (0, 0)) for w, k in zip(weights, leaders, strict=True)]
    return np.moveaxis(np.stack(found), 0, i)


def _moved(values: Array, axes: Sequence[_Cells], grown: Sequence[Array], moved: Sequence[Array]) -> Array:
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


class _Analytic:
    """Taylor coefficients of an axis' weights on its cells, times r^j, and what bounds the rest; see the top."""

    def __init__(self, cells: _Cells, terms: int, ratio: float = RATIO) -> None:
        r, weights, slopes = cells.radius, cells.weights, cells.relative
        self.terms = terms
        grown = weights * np.exp(np.abs(slopes) * r / ratio)
        spread = (r / ratio) ** 2 * (grown * slopes**2).sum(-1, keepdims=True) / 2
        self.valid = bool((spread < 0.9).all())
        bound = grown / np.maximum(1 - spread, 0.1)
        powers = weights * np.ones((terms, 1, 1))
        for j in range(1, terms):
            powers[j] = powers[j - 1] * slopes * (r / j)
        sums = powers.sum(-1, keepdims=True)
        coefficients = np.zeros_like(powers)
        for j in range(terms):
            coefficients[j] = (powers[j] - sum(coefficients[j - i] * sums[i] for i in range(1, j + 1))) / sums[0]
        orders = np.arange(terms)[:, None, None]
        self.coefficients = np.moveaxis(coefficients, 0, 1)
        """(cells, terms, keys)"""
        self.rest = bound * ratio**terms / (1 - ratio)
        self.rest_slope = bound * ratio**terms * (terms + ratio / (1 - ratio)) / (1 - ratio) / r
        self.slope = (orders * np.abs(coefficients)).sum(0) / r
        self.whole = np.abs(coefficients).sum(0) + self.rest
        self.all, self.all_slope = bound / (1 - ratio), bound * ratio / (1 - ratio) ** 2 / r
        self.orders = np.arange(terms) / r


def lipschitz_bound(grid: GridHead, box: Box, metric: str = "euclidean") -> float:
    """A Lipschitz constant of every output of the grid on the box, in the Euclidean metric or in "sup"."""
    if metric not in ("euclidean", "sup"):
        raise InputError(f'metric={metric!r} is not one that is known; take "euclidean" or "sup".')
    sides = _sides(grid, box)
    best = _crude_lipschitz(grid, metric)
    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        for finer, terms in ((1, 5), (1, 7), (1, 10), (1, 14), (2, 7), (2, 10), (2, 14)):
            cells = [_Cells(s, c, side, finer * _smooth_cells(s, c, side))
                     for s, c, side in zip(grid.slopes, grid.intercepts, sides, strict=True)]  # fmt: skip
            if math.prod(len(a.centres) * terms for a in cells) * grid.outputs > MOST_TERMS:
                continue
            found, left_out = _steepest(grid, [_Analytic(a, terms) for a in cells], metric)
            best = min(best, found * INFLATED)
            if left_out < 0.1 * best:
                break
    return best


def _smooth_cells(slopes: Array, intercepts: Array, side: tuple[float, float]) -> int:
    """How many cells make R six tenths of the inverse standard deviation of slopes."""
    spread = _spread(slopes, intercepts, side)
    return min(MOST_ON_AXIS, max(1, math.ceil(spread * (side[1] - side[0]) / (2 * 0.6 * RATIO))))


def _spread(slopes: Array, intercepts: Array, side: tuple[float, float]) -> float:
    """About the largest standard deviation of the slopes under the weights."""
    weights = softmax(np.multiply.outer(np.linspace(*side, 257), slopes) + intercepts)
    return float(np.sqrt(np.maximum(weights @ slopes**2 - (weights @ slopes) ** 2, 0).max()))


def _crude_lipschitz(grid: GridHead, metric: str) -> float:
    """|∂h/∂x_i| is a covariance of slope and value: at most half the range of slopes times half that of values."""
    flat = grid.values.reshape(-1, grid.outputs)
    spread = float((flat.max(0) - flat.min(0)).max()) / 2
    slopes = [spread * float(s.max() - s.min()) / 2 for s in grid.slopes]
    return INFLATED * (math.hypot(*slopes) if metric == "euclidean" else sum(slopes))


def _steepest(grid: GridHead, axes: Sequence[_Analytic], metric: str) -> tuple[float, float]:
    """The largest bound of the gradient's norm over all cells, and how much of it may be due to what is left out."""
    if not all(a.valid for a in axes):
        return math.inf, math.inf
    flat = grid.values.reshape(-1, grid.outputs)
    values = grid.values - (flat.max(0) + flat.min(0)) / 2
    rest = np.stack([_left_out(np.abs(values), axes, i) for i in range(len(axes))])
    rows = max(1, MOST_ENTRIES // (rest[0, 0].size * math.prod(a.terms for a in axes)))
    worst = 0.0
    for start in range(0, len(rest[0]), rows):
        part = slice(start, start + rows)
        main = _from_coefficients(values, [axes[0].coefficients[part], *(a.coefficients for a in axes[1:])], axes)
        worst = max(worst, _norm(main + rest[:, part], metric))
    return worst, _norm(rest, metric)


def _norm(slopes: Array, metric: str) -> float:
    """Of (axes, cells.., outputs), the largest over cells and outputs; for "sup" the dual norm, a sum."""
    return _worst(np.sqrt((slopes**2).sum(0)) if metric == "euclidean" else slopes.sum(0))


def _from_coefficients(values: Array, coefficients: Sequence[Array], axes: Sequence[_Analytic]) -> Array:
    """sum over α of α_i/r_i |h_α| r^α for each axis i, as (axes, cells.., outputs)."""
    m = len(axes)
    shape = [n for c in coefficients for n in c.shape[:2]]
    terms = np.abs(contracted([c.reshape(-1, c.shape[2]) for c in coefficients], values)).reshape(*shape, -1)
    found = []
    for i in range(m):
        held = terms
        for j in reversed(range(m)):
            held = np.tensordot(held, axes[j].orders if i == j else np.ones(axes[j].terms), (2 * j + 1, 0))
        found.append(held)
    return np.stack(found)


def _left_out(size: Array, axes: Sequence[_Analytic], i: int) -> Array:
    """What the rests of the Taylor polynomials, and rounding, add to the slope along axis i."""
    whole = [a.whole for a in axes]
    found = contracted([*whole[:i], axes[i].rest_slope, *whole[i + 1 :]], size)
    for j in range(len(axes)):
        if j != i:
            mixed = list(whole)
            mixed[i], mixed[j] = axes[i].slope, axes[j].rest
            found = found + contracted(mixed, size)
    everything = [a.all_slope if j == i else a.all for j, a in enumerate(axes)]
    return found + SLOP * contracted(everything, size)


def conditional_bound(f: GridFunction, grid: GridHead, box: Box, lipschitz: float, *, samples: int = 1 << 18,
                      metric: str = "euclidean") -> Conditional:  # fmt: skip
    """A bound on sup |f - h| for an f of which only values and a Lipschitz constant are known.

    lipschitz: of every output of f on the box in the metric. samples: about how many values of f are taken, at the
    centres of a lattice of cells that are as nearly cubes as whole numbers allow.
    """
    if not (math.isfinite(lipschitz) and lipschitz >= 0):
        raise InputError(f"lipschitz={lipschitz} must be a finite number of at least 0.")
    sides = _sides(grid, box)
    widths = np.array([high - low for low, high in sides])
    counts = np.maximum(1, np.floor(widths * (samples / widths.prod()) ** (1 / grid.axes))).astype(int)
    halves = widths / (2 * counts) * (1 + 1e-9)
    radius = float(np.sqrt((halves**2).sum()) if metric == "euclidean" else halves.max())
    points = [low + (high - low) * (np.arange(n) + 0.5) / n for (low, high), n in zip(sides, counts, strict=True)]
    with threadpool_limits(1):
        measured = _measured(f, grid, points) + rounding_bound(grid, box, "float64").fast
    steepest = lipschitz_bound(grid, box, metric)
    bound = (measured + (lipschitz + steepest) * radius) * INFLATED
    return Conditional(bound, measured, steepest, radius, int(counts.prod()))


def _measured(f: GridFunction, grid: GridHead, points: Sequence[Array]) -> float:
    """The largest |f - h| over all combinations of the points, a slab of the first axis at a time."""
    rows = max(1, MOST_ENTRIES // (grid.outputs * math.prod(len(u) for u in points[1:])))
    worst = 0.0
    for start in range(0, len(points[0]), rows):
        here = [points[0][start : start + rows], *points[1:]]
        mesh = np.stack(np.meshgrid(*here, indexing="ij"), axis=-1)
        values = np.asarray(f(mesh.reshape(-1, grid.axes)), dtype=np.float64).reshape(*mesh.shape[:-1], -1)
        worst = max(worst, float(np.abs(values - grid.on_lattice(here)).max()))
    if math.isnan(worst):
        raise InputError("f is not a number at a sample in the box; restrict the box to where it is defined.")
    return worst


@dataclass(frozen=True)
class GridProof:
    """Boxes, one side for each axis, that cover the domain, and the bound that every one of them keeps."""

    boxes: list[tuple[tuple[float, float], ...]]
    bound: float


@dataclass(frozen=True)
class GridRefutation:
    """A place where the error exceeds the goal, or, if not `certain`, where no box could be proved."""

    place: tuple[float, ...]
    error: float
    certain: bool


def prove_grid(target: Expression, box: Box, grid: GridHead, goal: float, *,
               most: int = MOST_BOXES) -> GridProof | GridRefutation:  # fmt: skip
    """Proves |target - grid| <= goal for every output on the box, or says where it fails; at most `most` boxes.

    The axes are the target's variables, in order; the grid's numbers are taken as they are, exactly.
    """
    sides = _sides(grid, box)
    if len(target.variables) != grid.axes or len(target.outputs) != grid.outputs:
        raise InputError(
            f"The target has {len(target.variables)} variables and {len(target.outputs)} outputs, the grid "
            f"{grid.axes} and {grid.outputs}; they must agree."
        )
    with precision():
        prover = _Prover(target, grid)
        waiting = deque(itertools.product(*(prover.first(i, side) for i, side in enumerate(sides))))
        proved, worst, count = [], 0.0, 0
        while waiting:
            here = waiting.popleft()
            count += 1
            found = prover.on_box(here, goal)
            if found.bound <= goal:
                proved.append(here)
                worst = max(worst, found.bound)
                continue
            place = tuple((low + high) / 2 for low, high in here)
            if found.least > goal:
                return GridRefutation(place, found.least, True)
            low, high = here[found.widest]
            middle = place[found.widest]
            if count >= most or not low < middle < high:
                return GridRefutation(place, prover.at(place), False)
            for half in ((low, middle), (middle, high)):
                waiting.append(tuple(half if i == found.widest else side for i, side in enumerate(here)))
    return GridProof(proved, worst)


@dataclass(frozen=True)
class _BoxError:
    """bound: of the error on the box. least: of the error at its centre, from below. widest: the axis to cut."""

    bound: float
    least: float
    widest: int


class _AxisBalls:
    """One axis over [c - r, c + r]: E_k(t) = W_k exp(d_k t), and Taylor coefficients times r^j.

    rest, top: (keys,), bounds of what the coefficients leave out of E_k, and of |E_k|. low: a lower bound of D.
    """

    def __init__(self, slopes: Sequence[arb], levels: Sequence[arb], low: float, high: float, terms: int) -> None:
        self.centre, self.radius = (arb(low) + arb(high)) / 2, (arb(high) - arb(low)) / 2
        scores = [s * self.centre + c for s, c in zip(slopes, levels, strict=True)]
        lead = max(scores, key=float)
        parts = [(s - lead).exp() for s in scores]
        total = sum(parts[1:], parts[0])
        weights = [p / total for p in parts]
        mean = sum((w * s for w, s in zip(weights, slopes, strict=True)), arb(0))
        middle = mean.mid()
        self.low = (-abs(mean - middle) * self.radius).exp().lower()
        rows = [weights]
        steps = [(s - middle) * self.radius for s in slopes]
        for j in range(1, terms):
            rows.append([e * d / j for e, d in zip(rows[-1], steps, strict=True)])
        self.matrix = arb_mat(rows)
        self.denominator = [sum(row[1:], row[0]) for row in rows]
        sizes = [abs(d).upper().exp() for d in steps]
        self.rest = [(abs(e * d) * g / terms).upper() for e, d, g in zip(rows[-1], steps, sizes, strict=True)]
        self.top = [(w * g).upper() for w, g in zip(weights, sizes, strict=True)]


class _Prover:
    """The target and the grid's numbers as balls, and bounds on boxes."""

    def __init__(self, target: Expression, grid: GridHead) -> None:
        self.target, self.counts, self.outputs = target, grid.counts, grid.outputs
        self.axes, (self.order, self.terms) = grid.axes, ORDERS[grid.axes]
        self.grid = grid
        self.slopes = [[arb(float(v)) for v in s] for s in grid.slopes]
        self.levels = [[arb(float(v)) for v in c] for c in grid.intercepts]
        self.values = [arb(float(v)) for v in grid.values.ravel()]
        self.sizes = [abs(v) for v in self.values]
        self.known: dict[tuple[int, float, float], _AxisBalls] = {}

    def first(self, i: int, side: tuple[float, float]) -> list[tuple[float, float]]:
        """The boxes that an axis starts with, on which scores move by about a standard deviation."""
        low, high = side
        count = max(
            1, min(64, math.ceil(_spread(self.grid.slopes[i], self.grid.intercepts[i], side) * (high - low) / 2))
        )
        edges = [low + (high - low) * j / count for j in range(count)] + [high]
        return list(itertools.pairwise(edges))

    def axis(self, i: int, low: float, high: float) -> _AxisBalls:
        found = self.known.get((i, low, high))
        if found is None:
            found = _AxisBalls(self.slopes[i], self.levels[i], low, high, self.terms)
            self.known[i, low, high] = found
        return found

    def on_box(self, here: Sequence[tuple[float, float]], goal: float) -> _BoxError:
        """The error on a box; where it is plain that the goal is missed, no more than that."""
        by_width = max(range(self.axes), key=lambda i: here[i][1] - here[i][0])
        axes = [self.axis(i, low, high) for i, (low, high) in enumerate(here)]
        wide = directional_jet(self.target, [ball(*side) for side in here],
                               [a.radius * ball(-1, 1) for a in axes], self.order)  # fmt: skip
        order = _enough_terms(wide, goal / 8)
        rests = [self._rest(axes, i) for i in range(self.axes)]
        hopeless = order < 1 or any(upper(abs(c[order])) > goal for c in wide)
        beyond = [max(upper(r) for r in rest) for rest in rests]
        if hopeless or max(beyond) > goal:
            return _BoxError(math.inf, 0.0, by_width if hopeless else beyond.index(max(beyond)))
        near = _taylor(self.target, [a.centre for a in axes], [a.radius for a in axes], order)
        if near is None:
            return _BoxError(math.inf, 0.0, by_width)
        numerators = _mode_products(self.values, (*self.counts, self.outputs), [a.matrix for a in axes])
        size = self.terms**self.axes
        found = []
        for o, (f, remainder) in enumerate(zip(near, wide, strict=True)):
            part = _Output(f, order, axes, numerators[o * size : (o + 1) * size], [rest[o] for rest in rests])
            found.append((part.bound(abs(remainder[order]).upper()), part))
        bound, worst = max(found, key=lambda pair: pair[0])
        if bound <= goal:
            return _BoxError(bound, 0.0, 0)
        least = max(part.at_centre() for _, part in found)
        return _BoxError(bound, least, by_width if order == 1 else worst.widest())

    def at(self, place: Sequence[float]) -> float:
        """An upper bound of the error at a point; infinity where the target is undefined."""
        x = [arb(v) for v in place]
        axes = [_AxisBalls(s, c, v, v, 1) for s, c, v in zip(self.slopes, self.levels, place, strict=True)]
        values = directional_jet(self.target, x, [arb(0)] * self.axes, 0)
        found = _mode_products(self.values, (*self.counts, self.outputs), [a.matrix for a in axes])
        return max(upper(abs(f[0] - n)) for f, n in zip(values, found, strict=True))

    def _rest(self, axes: Sequence[_AxisBalls], i: int) -> list[arb]:
        """What axis i's Taylor polynomials leave out of N, for each output."""
        rows = [arb_mat([a.rest if j == i else a.top]) for j, a in enumerate(axes)]
        return _mode_products(self.sizes, (*self.counts, self.outputs), rows)


def _enough_terms(wide: Sequence[Sequence[arb]], share: float) -> int:
    """How many terms of the target to take: the fewest whose remainder is within the share, or the best number."""
    order = min(len(c) for c in wide) - 1
    remainders = [max(upper(abs(c[j])) for c in wide) for j in range(order + 1)]
    for j in range(1, order + 1):
        if remainders[j] <= share:
            return j
    return min(range(1, order + 1), key=remainders.__getitem__) if order else 0


class _Output:
    """One output on a box: g = f·D - N in Chebyshev polynomials, and what lies beyond the coefficients.

    f: the target's Taylor coefficients at the centre, times r^α, as a tensor (order, .., order). numerator: N's.
    rests: what each axis' coefficients leave out of N.
    """

    def __init__(self, f: list[arb], order: int, axes: Sequence[_AxisBalls], numerator: list[arb],
                 rests: list[arb]) -> None:  # fmt: skip
        self.f, self.order, self.axes = f, order, axes
        self.terms = len(axes[0].denominator)
        product = _mode_products(f, (order,) * len(axes), [_toeplitz(a.denominator, order) for a in axes])
        low = [p - n for p, n in zip(product, numerator, strict=True)]
        self.centre = low[0]
        chebyshev = _mode_products(low, (self.terms,) * len(axes), [_chebyshev(self.terms)] * len(axes))
        self.sizes = [abs(c).upper() for c in chebyshev]
        self.left = [rest + self._beyond(i) for i, rest in enumerate(rests)]

    def _beyond(self, i: int) -> arb:
        """What is not in the coefficients of the target's polynomial times D, because of axis i."""
        found = arb(0)
        marginal = [arb(0)] * self.order
        for place, c in enumerate(self.f):
            marginal[place // self.order ** (len(self.axes) - 1 - i) % self.order] += abs(c).upper()
        tails = [sum(self.axes[i].rest, arb(0))]
        for c in reversed(self.axes[i].denominator):
            tails.append(tails[-1] + abs(c).upper())
        for power, size in enumerate(marginal):
            found += size * tails[min(power, self.terms)]
        return found * math.prod((sum(a.top, arb(0)) for j, a in enumerate(self.axes) if j != i), start=arb(1))

    def bound(self, remainder: arb) -> float:
        """Of |f - N/D|, remainder bounding what f's polynomial leaves out."""
        total = sum(self.sizes, arb(0)) + sum(self.left, arb(0))
        return upper(total / math.prod((a.low for a in self.axes), start=arb(1)) + remainder)

    def at_centre(self) -> float:
        """A lower bound of the error at the centre."""
        error = abs(self.centre) / math.prod((a.denominator[0] for a in self.axes), start=arb(1))
        return max(0.0, float(error.lower())) if error.is_finite() else 0.0

    def widest(self) -> int:
        """The axis along which most of the bound moves: a guess that says which to cut."""
        parts, m = [], len(self.axes)
        for i in range(m):
            stride = self.terms ** (m - 1 - i)
            moving = sum((s for k, s in enumerate(self.sizes) if k // stride % self.terms), self.left[i])
            parts.append(float(moving))
        return max(range(m), key=parts.__getitem__)


def _mode_products(tensor: Sequence[arb], shape: Sequence[int], matrices: Sequence[arb_mat]) -> list[arb]:
    """The tensor with its leading axes multiplied by the matrices; axes that are left over come first then."""
    shape, entries = list(shape), list(tensor)
    for matrix in matrices:
        rest = len(entries) // shape[0]
        product = (matrix * arb_mat(shape[0], rest, entries)).transpose()
        entries = product.entries()
        shape = [*shape[1:], matrix.nrows()]
    return entries


def _toeplitz(coefficients: Sequence[arb], order: int) -> arb_mat:
    """Multiplication of a polynomial of `order` terms by this one, cut to as many terms as this one has."""
    zero = arb(0)
    return arb_mat([[coefficients[i - j] if j <= i else zero for j in range(order)] for i in range(len(coefficients))])


@lru_cache(maxsize=16)
def _chebyshev(terms: int) -> arb_mat:
    """From coefficients of t^j to those of T_k: t^j = 2^(1-j) times the sum of binomial(j, (j-k)/2) T_k, T_0 halved."""
    rows = [[Fraction(0)] * terms for _ in range(terms)]
    for j in range(terms):
        for k in range(j % 2, j + 1, 2):
            rows[k][j] = Fraction(math.comb(j, (j - k) // 2) * 2, 2**j) / (1 if k else 2)
    return arb_mat([[arb(v.numerator) / v.denominator for v in row] for row in rows])


def _taylor(target: Expression, centre: Sequence[arb], radii: Sequence[arb], order: int) -> list[list[arb]] | None:
    """For each output the coefficients f_α r^α of degree below `order`, as a tensor (order, .., order)."""
    axes = len(centre)
    directions, powers, inverse = _directions(axes, order)
    series = [directional_jet(target, centre, [r * d for r, d in zip(radii, direction, strict=True)], order - 1)
              for direction in directions]  # fmt: skip
    found = []
    for o in range(len(target.outputs)):
        if min(len(s[o]) for s in series) < order:
            return None
        mixed = inverse * arb_mat([s[o] for s in series])
        tensor = [arb(0)] * order**axes
        for row, beta in enumerate(powers):
            for j in range(sum(beta), order):
                alpha = (j - sum(beta), *beta)
                tensor[sum(a * order ** (axes - 1 - i) for i, a in enumerate(alpha))] = mixed[row, j]
        found.append(tensor)
    return found


@lru_cache(maxsize=32)
def _directions(axes: int, order: int) -> tuple[list[list[arb]], list[tuple[int, ...]], arb_mat]:
    """Directions (1, θ), powers β of θ, and the inverse of the matrix θ^β; all of degree below `order`."""
    powers = [b for b in itertools.product(range(order), repeat=axes - 1) if sum(b) < order]
    nodes = [tuple(fmpq(2 * b - order + 1, max(order - 1, 1)) for b in beta) for beta in powers]
    matrix = [[math.prod((t**b for t, b in zip(node, beta, strict=True)), start=fmpq(1)) for beta in powers]
              for node in nodes]  # fmt: skip
    inverse = fmpq_mat(matrix).inv()
    balls = arb_mat([[arb(inverse[i, j]) for j in range(len(powers))] for i in range(len(powers))])
    return [[arb(1), *(arb(t) for t in node)] for node in nodes], powers, balls
