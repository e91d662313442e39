"""A tensor grid of keys against its formulas: a proof on boxes.

In ball arithmetic, with the notation of `grid_rounding.py`. On a box with centre c and radii r, multiply numerator and
denominator of the axes' softmaxes by the same exponentials: E_k(t) = W_k exp(d_k t), t = x_i - c_i, D_i = sum E_k,
which is at least 1 but for rounding (Jensen), N = A_V(E^1, .., E^m), D the product of the D_i, h = N/D. For f take its
Taylor polynomial P at c, |f - P| <= ε on the box (`directional_jet`; P's mixed coefficients come from series along
enough directions, by an exact inverse). Then

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

from flint import arb, arb_mat, fmpq, fmpq_mat

from anchorhead.enclosure.directional import directional_jet
from anchorhead.enclosure.precision import ball, precision, upper
from anchorhead.errors import InputError
from anchorhead.expression.graph import Expression
from anchorhead.head.grid_head import Box, GridHead

MOST_BOXES = 40_000
ORDERS = {1: (12, 16), 2: (12, 14), 3: (12, 9), 4: (8, 6)}
"""Terms of the Taylor series of the target, at most, and of the head, by the number of axes."""


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
    sides = grid.sides(box)
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
        count = max(1, min(64, math.ceil(self.grid.spread(i, side) * (high - low) / 2)))
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
