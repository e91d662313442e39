"""How steep a tensor grid of keys is, and what follows from samples and a declared Lipschitz constant.

Notation and cells are those of `grid_rounding.py`.

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
sample, then sup |f - h| <= (largest sampled |f - h|) + (L + Lip h) r. The rounding of the sampled h is added. An L that
two neighbouring samples contradict, by more than values of f may round, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from anchorhead.arithmetic import Array, exp, power
from anchorhead.errors import InputError
from anchorhead.head.grid_head import Box, GridFunction, GridHead, contracted
from anchorhead.proof.grid_rounding import INFLATED, Cells, rounding_bound, worst_of

SLOP = 1e-12
MOST_ENTRIES = 1 << 21
"""Entries of a temporary, 16 MB."""
MOST_TERMS = 1 << 30
"""Taylor coefficients that a Lipschitz constant is worth."""
MOST_ON_AXIS = 4096
BLURRED = 1e-6
"""What values of a function that is only sampled may round by, as in float32, as a share of the largest."""
RATIO = 0.2
"""q: a cell's radius over that of the discs on which weights are bounded."""


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


class _Analytic:
    """Taylor coefficients of an axis' weights on its cells, times r^j, and what bounds the rest; see the top."""

    def __init__(self, cells: Cells, terms: int, ratio: float = RATIO) -> None:
        r, weights, slopes = cells.radius, cells.weights, cells.relative
        self.terms = terms
        grown = weights * exp(np.abs(slopes) * r / ratio)
        spread = (r / ratio) * (r / ratio) * (grown * slopes * slopes).sum(-1, keepdims=True) / 2
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
        last = math.prod([ratio] * terms)
        self.rest = bound * last / (1 - ratio)
        self.rest_slope = bound * last * (terms + ratio / (1 - ratio)) / (1 - ratio) / r
        self.slope = (orders * np.abs(coefficients)).sum(0) / r
        self.whole = np.abs(coefficients).sum(0) + self.rest
        self.all, self.all_slope = bound / (1 - ratio), bound * ratio / ((1 - ratio) * (1 - ratio)) / r
        self.orders = np.arange(terms) / r


def lipschitz_bound(grid: GridHead, box: Box, metric: str = "euclidean") -> float:
    """A Lipschitz constant of every output of the grid on the box, in the Euclidean metric or in "sup"."""
    if metric not in ("euclidean", "sup"):
        raise InputError(f'metric={metric!r} is not one that is known; take "euclidean" or "sup".')
    sides = grid.sides(box)
    best = _crude_lipschitz(grid, metric)
    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        for finer, terms in ((1, 5), (1, 7), (1, 10), (1, 14), (2, 7), (2, 10), (2, 14)):
            cells = [Cells(grid.slopes[i], grid.intercepts[i], side, finer * _smooth_cells(grid.spread(i, side), side))
                     for i, side in enumerate(sides)]  # fmt: skip
            if math.prod(len(a.centres) * terms for a in cells) * grid.outputs > MOST_TERMS:
                continue
            found, left_out = _steepest(grid, [_Analytic(a, terms) for a in cells], metric)
            best = min(best, found * INFLATED)
            if left_out < 0.1 * best:
                break
    return best


def _smooth_cells(spread: float, side: tuple[float, float]) -> int:
    """How many cells make R six tenths of the inverse standard deviation of slopes."""
    return min(MOST_ON_AXIS, max(1, math.ceil(spread * (side[1] - side[0]) / (2 * 0.6 * RATIO))))


def _crude_lipschitz(grid: GridHead, metric: str) -> float:
    """|∂h/∂x_i| is a covariance of slope and value: at most half the range of slopes times half that of values."""
    flat = grid.values.reshape(-1, grid.outputs)
    spread = float((flat.max(0) - flat.min(0)).max()) / 2
    slopes = [spread * float(s.max() - s.min()) / 2 for s in grid.slopes]
    return INFLATED * (math.sqrt(sum(s * s for s in slopes)) if metric == "euclidean" else sum(slopes))


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
    return worst_of(np.sqrt((slopes**2).sum(0)) if metric == "euclidean" else slopes.sum(0))


def _from_coefficients(values: Array, coefficients: Sequence[Array], axes: Sequence[_Analytic]) -> Array:
    """sum over α of α_i/r_i |h_α| r^α for each axis i, as (axes, cells.., outputs)."""
    m = len(axes)
    shape = [n for c in coefficients for n in c.shape[:2]]
    terms = np.abs(contracted([c.reshape(-1, c.shape[2]) for c in coefficients], values)).reshape(*shape, -1)
    found = []
    for i in range(m):
        held = terms
        for j in reversed(range(m)):
            orders = axes[j].orders.reshape(-1, *[1] * (held.ndim - 2 * j - 2)) if i == j else 1.0
            held = (held * orders).sum(2 * j + 1)
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
    sides = grid.sides(box)
    widths = np.array([high - low for low, high in sides])
    counts = np.maximum(1, np.floor(widths * power(samples / float(widths.prod()), 1 / grid.axes))).astype(int)
    halves = widths / (2 * counts) * (1 + 1e-9)
    radius = float(np.sqrt((halves**2).sum()) if metric == "euclidean" else halves.max())
    points = [low + (high - low) * (np.arange(n) + 0.5) / n for (low, high), n in zip(sides, counts, strict=True)]
    with threadpool_limits(1):
        measured = _measured(f, grid, points, lipschitz) + rounding_bound(grid, box, "float64").fast
    steepest = lipschitz_bound(grid, box, metric)
    bound = (measured + (lipschitz + steepest) * radius) * INFLATED
    return Conditional(bound, measured, steepest, radius, int(counts.prod()))


def _measured(f: GridFunction, grid: GridHead, points: Sequence[Array], lipschitz: float) -> float:
    """The largest |f - h| over all combinations of the points, a slab of the first axis at a time."""
    rows = max(1, MOST_ENTRIES // (grid.outputs * math.prod(len(u) for u in points[1:])))
    worst = 0.0
    for start in range(0, len(points[0]), rows):
        here = [points[0][start : start + rows], *points[1:]]
        mesh = np.stack(np.meshgrid(*here, indexing="ij"), axis=-1)
        values = np.asarray(f(mesh.reshape(-1, grid.axes)), dtype=np.float64).reshape(*mesh.shape[:-1], -1)
        hold_against(values, here, lipschitz, BLURRED * float(np.abs(values).max()))
        worst = max(worst, float(np.abs(values - grid.on_lattice(here)).max()))
    if math.isnan(worst):
        raise InputError("f is not a number at a sample in the box; restrict the box to where it is defined.")
    return worst


def hold_against(values: Array, axes: Sequence[Array], lipschitz: float, blur: float = 1e-12) -> None:
    """Refuses a Lipschitz constant that values (.., outputs) on a lattice contradict by more than they are blurred."""
    for axis, places in enumerate(axes):
        moved = float(np.abs(np.diff(values, axis=axis)).max(initial=0.0))
        step = math.inf
        if len(places) > 1:
            step = float(places[1] - places[0] + 4 * np.spacing(np.abs(places).max()))
        if moved > lipschitz * step * (1 + 1e-6) + blur:
            raise InputError(
                f"lipschitz={lipschitz:g} cannot be right: between two points of the box the function changes by "
                f"{moved / step:.4g} times their distance. Declare a constant of at least that."
            )
