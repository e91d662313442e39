"""Arithmetic that gives the same bits on every machine: what the compiler computes with, and why it may.

IEEE 754 fixes the result of + - * / and the square root, so an elementwise NumPy operation among these gives the same
bits under every processor, library and number of threads. Three things do not: BLAS and LAPACK, which sum in an order
of their own and fuse multiplications with additions; transcendental functions of NumPy, torch and the C library, whose
last bit depends on the instructions that a processor has; and sorting that leaves the order of equals open. A search
amplifies such a bit until another head comes out. So nothing between a target and its file uses them. Here are

- exp, log, sin, cos and what follows from them on arrays, by range reduction and a polynomial, to an ulp or two;
- `pointwise`: any function of a ball, correctly rounded but for one case in 2^27, in python-flint, whose integers are
  the same everywhere; slower, about a microsecond a number;
- sums in a fixed order: along the first axis row by row, along a contiguous last axis as NumPy's pairwise sum has it,
  an order that depends on the length alone;
- products of matrices, least squares and softmax in such sums;
- `descend`, Nelder and Mead's search, where ties go to the older point.

A power of a number goes through `power` or products: the C library's pow, which ** means, is not correctly rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

Array = NDArray[np.float64]

PRECISION = 80
CHUNK = 1 << 13
"""Elements that are worked on at once, so that intermediate results stay in the cache."""


def pointwise(f: Callable[[arb], arb], values: Iterable[float]) -> list[float]:
    """The float64 nearest to f at each value; NaN where f is not defined."""
    with ctx.workprec(PRECISION):
        return [float(f(arb(value))) for value in values]


def exp_of(x: float) -> float:
    """exp of one number."""
    return pointwise(arb.exp, (x,))[0]


def log_of(x: float) -> float:
    """The natural logarithm of one number."""
    return pointwise(arb.log, (x,))[0]


def power(base: float, exponent: float) -> float:
    """base**exponent for a positive base."""
    return pointwise(lambda b: b ** arb(exponent), (base,))[0]


def binary_ceiling(x: float) -> float:
    """The smallest power of two that is not below x > 0."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(1.0, exponent - (mantissa == 0.5))


def binary_floor(x: float) -> float:
    """The largest power of two that is not above x > 0."""
    return math.ldexp(0.5, math.frexp(x)[1])


@lru_cache(maxsize=256)
def geometric(low: float, high: float, count: int) -> Array:
    """Numbers in geometric progression from low to high, both positive and both included."""
    with ctx.workprec(PRECISION):
        ratio = arb(high) / arb(low)
        inner = [float(arb(low) * ratio ** (arb(i) / (count - 1))) for i in range(1, count - 1)]
    found = np.array([low, *inner, high])
    found.flags.writeable = False
    return found


def _constants(text: Callable[[], arb], bits: int, parts: int) -> list[float]:
    """A constant as a sum of floats, all but the last of that many bits, so that products with them are exact."""
    with ctx.workprec(300):
        rest, found = text(), []
        for _ in range(parts - 1):
            mantissa, exponent = math.frexp(float(rest))
            found.append(math.ldexp(math.floor(math.ldexp(mantissa, bits)), exponent - bits))
            rest = rest - arb(found[-1])
        return [*found, float(rest)]


_LN2 = _constants(lambda: arb(2).log(), 40, 2)
_HALF_PI = _constants(lambda: arb.pi() / 2, 30, 4)
_EXP = [1.0 / math.factorial(k) for k in range(15)]
_SIN = [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)]
_COS = [(-1) ** k / math.factorial(2 * k) for k in range(10)]
_ATANH = [2.0 / (2 * k + 1) for k in range(12)]
_REDUCIBLE = 2.0**22
"""Up to here the reduction of an angle by multiples of half of pi is exact enough; beyond, `pointwise`."""


def _chunked(kernel: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The kernel on parts of an array of any shape, without warnings: what is not finite comes out as such."""

    def over(x: Array) -> Array:
        flat = np.ascontiguousarray(x, dtype=np.float64).reshape(-1)
        with np.errstate(all="ignore"):
            if flat.size <= CHUNK:
                return kernel(flat).reshape(np.shape(x))
            out = np.empty_like(flat)
            for start in range(0, flat.size, CHUNK):
                out[start : start + CHUNK] = kernel(flat[start : start + CHUNK])
        return out.reshape(np.shape(x))

    return over


def _horner(coefficients: list[float], x: Array) -> Array:
    total = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total *= x
        total += c
    return total


def _two_to(k: Array) -> Array:
    """2**k for whole numbers -1022 <= k <= 1023, from the bits of a float64."""
    found: Array = ((k.astype(np.int64) + 1023) << 52).view(np.float64)
    return found


def _scaled(x: Array, k: Array) -> Array:
    """x·2**k, in two steps, so that results near the ends of the range round once or overflow."""
    half = np.floor(k / 2)
    return x * _two_to(half) * _two_to(k - half)


def _reduced_exp(x: Array) -> tuple[Array, Array]:
    """k and r with x = k log 2 + r, |r| <= log(2)/2."""
    x = np.minimum(np.maximum(x, -750.0), 720.0)
    k = np.rint(x * (1 / _LN2[0]))
    return k, (x - k * _LN2[0]) - k * _LN2[1]


def _exp(x: Array) -> Array:
    k, r = _reduced_exp(x)
    return _scaled(_horner(_EXP, r), k)


def _expm1(x: Array) -> Array:
    small = np.abs(x) < 0.34
    near = np.where(small, x, 0.0)
    return np.where(small, near * _horner(_EXP[1:], near), _exp(x) - 1)


def _log(x: Array) -> Array:
    mantissa, exponent = np.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa, exponent = np.where(low, 2 * mantissa, mantissa), exponent - low
    s = (mantissa - 1) / (mantissa + 1)
    found = exponent * _LN2[0] + (s * _horner(_ATANH, s * s) + exponent * _LN2[1])
    found = np.where(np.isinf(x), x, found)
    return np.where(x > 0, found, np.where(x == 0, -np.inf, np.nan))


def _log1p(x: Array) -> Array:
    u = 1 + x
    return np.where(np.isinf(u), u, _log(u) - ((u - 1) - x) / u)


def _tanh(x: Array) -> Array:
    grown = _expm1(-2 * np.abs(x))
    return np.copysign(grown / (grown + 2), x)


def _sigmoid(x: Array) -> Array:
    falling = _exp(-np.abs(x))
    return np.where(x < 0, falling, 1.0) / (1 + falling)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0.0) + _log1p(_exp(-np.abs(x)))


def _sinh(x: Array) -> Array:
    grown = _expm1(np.abs(x))
    return np.copysign(np.where(np.abs(x) < 700, (grown + grown / (grown + 1)) / 2, np.inf), x)


def _cosh(x: Array) -> Array:
    grown = _exp(np.abs(x))
    return (grown + 1 / grown) / 2


def _turned(x: Array, quarter: int) -> Array:
    """sin(x + quarter·π/2)."""
    k = np.rint(x * (1 / _HALF_PI[0]))
    r = x
    for part in _HALF_PI:
        r = r - k * part
    square = r * r
    turns = (np.where(np.isfinite(k), k, 0.0).astype(np.int64) + quarter) & 3
    found = np.where(turns & 1, _horner(_COS, square), r * _horner(_SIN, square))
    return np.where(turns & 2, -found, found)


def _angular(kernel: Callable[[Array], Array], ball: Callable[[arb], arb]) -> Callable[[Array], Array]:
    def over(x: Array) -> Array:
        found = kernel(x)
        far = np.nonzero((np.abs(x) > _REDUCIBLE) & np.isfinite(x))[0]
        found[far] = pointwise(ball, x[far].tolist())
        return found

    return over


exp = _chunked(_exp)
expm1 = _chunked(_expm1)
log = _chunked(_log)
log1p = _chunked(_log1p)
tanh = _chunked(_tanh)
sigmoid = _chunked(_sigmoid)
softplus = _chunked(_softplus)
sinh = _chunked(_sinh)
cosh = _chunked(_cosh)
sin = _chunked(_angular(lambda x: _turned(x, 0), arb.sin))
cos = _chunked(_angular(lambda x: _turned(x, 1), arb.cos))


def product(left: Array, right: Array) -> Array:
    """The matrix product, to about 2^-60 of the largest terms, whatever order and instructions BLAS has.

    Rows of the one and columns of the other are cut into slices of whole numbers, so short that the products of
    slices and all their partial sums are whole numbers below 2^53. BLAS then has nothing to round. (K. Ozaki, T. Ogita,
    S. Oishi, S. M. Rump, *Error-free transformations of matrix multiplication*, Numerical Algorithms 59, 2012.) Small
    products are plain sums over the inner axis instead, which is faster. Leading axes are so many products at once.
    """
    inner = left.shape[-1]
    if left.shape[-2] * inner * right.shape[-1] <= CHUNK:
        return np.add.reduce(left[..., None] * right[..., None, :, :], -2)
    bits = (52 - inner.bit_length()) // 2
    (a, b, c), down = _slices(left, bits, -1)
    (x, y, z), across = _slices(right, bits, -2)
    total = (a @ z + b @ y + c @ x) * 2.0**-bits
    total = (total + (a @ y + b @ x)) * 2.0**-bits
    return (total + a @ x) * down * across


def _slices(matrix: Array, bits: int, axis: int) -> tuple[list[Array], Array]:
    """Three matrices of whole numbers of so many bits, and the unit of the first in each row or column."""
    largest = np.abs(matrix).max(axis, keepdims=True)
    unit = np.ldexp(1.0, np.frexp(largest)[1] - bits)
    rest, slices = matrix / unit, []
    for _ in range(3):
        slices.append(np.rint(rest))
        rest = (rest - slices[-1]) * 2.0**bits
    return slices, unit


def least_squares(columns: Array, targets: Array, ridge: Array) -> Array:
    """x that minimises |sum of x_j columns_j - target|² + sum of (ridge_j x_j)², (..., unknowns, targets).

    columns: (..., unknowns, samples), targets: (..., targets, samples), ridge: (unknowns,), positive. By Gram and
    Schmidt's method in its modified form, with the targets as further columns, which is as stable as Householder's
    for this purpose (Å. Björck, BIT 7, 1967). Leading axes are so many problems at once.
    """
    *several, unknowns, samples = columns.shape
    rows = np.zeros((*several, unknowns + targets.shape[-2], samples + unknowns))
    rows[..., :unknowns, :samples], rows[..., unknowns:, :samples] = columns, targets
    rows[..., np.arange(unknowns), samples + np.arange(unknowns)] = ridge
    shares = _orthogonalise(rows, unknowns)
    return _unit_upper_solved(shares[..., :unknowns], shares[..., unknowns:])


class Orthogonal(NamedTuple):
    """W = leftᵀ · diag(sizes) · right⁻¹ for a matrix W of more rows than columns; the rows of `left` are orthonormal.

    sizes fall, roughly like singular values, and `right` is a permuted unit triangular matrix of moderate numbers.
    So right · (sizes/(sizes² + λ²)) · left f is the least squares solution with about a ridge λ.
    """

    left: Array
    sizes: Array
    right: Array


def orthogonal(columns: Array) -> Orthogonal:
    """The decomposition of the matrix with these columns, (..., unknowns, samples): Gram and Schmidt, largest first.

    Once more without choosing, since the small ones are not quite orthogonal to the others the first time.
    """
    *several, unknowns, samples = columns.shape
    order, rows, shares = _largest_first(columns.reshape(-1, unknowns, samples))
    sizes = _normalised(rows)
    again = _orthogonalise(rows, unknowns)
    ratios = np.minimum(sizes[..., None, :] / sizes[..., :, None], 1.0)
    inverse = _unit_upper_solved(again * ratios, np.broadcast_to(np.eye(unknowns), shares.shape))
    inverse = _unit_upper_solved(shares, inverse)
    right = np.empty_like(inverse)
    np.put_along_axis(right, order[..., None], inverse, -2)
    sizes = sizes * _normalised(rows)
    return Orthogonal(*(part.reshape(*several, *part.shape[1:]) for part in (rows, sizes, right)))


def _largest_first(columns: Array) -> tuple[NDArray[np.int64], Array, Array]:
    """Gram and Schmidt's method for each matrix, the largest remainder first: the order, the rows and shares in it."""
    rows, every = columns.copy(), np.arange(len(columns))
    order = np.zeros(rows.shape[:2], dtype=np.int64)
    shares, left = np.zeros((*rows.shape[:2], rows.shape[1])), np.ones(rows.shape[:2])
    for j in range(rows.shape[1]):
        chosen = np.argmax((np.add.reduce(rows * rows, -1) + 1e-300) * left, -1)
        row = rows[every, chosen]
        left[every, chosen] = 0.0
        order[:, j] = chosen
        sizes = np.add.reduce(rows * row[:, None], -1)
        share = sizes / np.maximum(sizes[every, chosen], 1e-300)[:, None]
        shares[:, j] = share
        share *= left
        rows -= share[..., None] * row[:, None]
    shares = np.triu(np.take_along_axis(shares, order[:, None], -1))
    return order, np.take_along_axis(rows, order[..., None], -2), shares


def _normalised(rows: Array) -> Array:
    """Makes the rows of length one, in place; what their lengths were."""
    sizes = np.maximum(np.sqrt(np.add.reduce(rows * rows, -1)), 1e-150)
    rows /= sizes[..., None]
    return sizes


def _orthogonalise(rows: Array, count: int) -> Array:
    """Makes the first rows orthogonal to each other and the others to them, in place; what was taken off each."""
    scratch = np.empty_like(rows)
    shares = np.zeros((*rows.shape[:-2], count, rows.shape[-2]))
    for j in range(count):
        later, held = rows[..., j:, :], scratch[..., j:, :]
        np.multiply(later, later[..., :1, :], out=held)
        sizes = np.add.reduce(held, -1)
        share = sizes / np.maximum(sizes[..., :1], 1e-300)
        shares[..., j, j:] = share
        np.multiply(share[..., 1:, None], later[..., :1, :], out=held[..., 1:, :])
        later[..., 1:, :] -= held[..., 1:, :]
    return shares


def _unit_upper_solved(matrix: Array, right: Array) -> Array:
    """x with matrix · x = right, for ones on the diagonal and zeros below."""
    found = right.copy()
    for j in range(matrix.shape[-1] - 2, -1, -1):
        found[..., j, :] -= np.add.reduce(matrix[..., j, j + 1 :, None] * found[..., j + 1 :, :], -2)
    return found


def softmax(scores: Array) -> Array:
    """Over the last axis but one, which is that of the keys."""
    weights = exp(scores - np.maximum.reduce(scores, -2, keepdims=True))
    weights /= np.add.reduce(weights, -2, keepdims=True)
    return weights


def descend(f: Callable[[list[Array]], list[float]], simplices: Sequence[Array], tries: int,
            close: float = 1e-4) -> list[tuple[float, Array]]:  # fmt: skip
    """Nelder and Mead's search from each simplex of points: the smallest value found with so many tries, and where.

    f is asked for several points at once. A search ends early once all points of its simplex lie within `close` of the
    best, and so do their values.
    """
    found: list[tuple[float, Array]] = [(math.inf, simplex[0]) for simplex in simplices]
    running = {i: _search(simplex, tries, close) for i, simplex in enumerate(simplices)}
    wanted = {i: next(search) for i, search in running.items()}
    while wanted:
        values = iter(f([point for points in wanted.values() for point in points]))
        for i, points in list(wanted.items()):
            try:
                wanted[i] = running[i].send([next(values) for _ in points])
            except StopIteration as end:
                found[i] = end.value
                del wanted[i]
    return found


Search = Generator[Sequence[Array], list[float], tuple[float, Array]]


def _search(simplex: Array, tries: int, close: float) -> Search:
    """Yields points, is sent their values, and returns the best."""
    count = 0
    entries: list[tuple[float, int, Array]] = []

    def asked(points: Sequence[Array]) -> Generator[Sequence[Array], list[float], list[tuple[float, int, Array]]]:
        nonlocal count
        values = yield points
        count += len(points)
        return [
            (value, count - len(points) + i, point) for i, (value, point) in enumerate(zip(values, points, strict=True))
        ]

    def ranked(found: list[tuple[float, int, Array]]) -> list[tuple[float, int, Array]]:
        return sorted(found, key=lambda entry: entry[:2])

    entries = ranked((yield from asked(list(simplex))))
    while count < tries:
        best, worst = entries[0], entries[-1]
        apart = max(float(np.abs(p - best[2]).max()) for _, _, p in entries[1:])
        if worst[0] - best[0] <= close and apart <= close:
            break
        middle = np.add.reduce([p for _, _, p in entries[:-1]], 0) / (len(entries) - 1)
        (new,) = yield from asked([middle + (middle - worst[2])])
        if new[0] < best[0]:
            (further,) = yield from asked([middle + 2 * (middle - worst[2])])
            new = min(new, further, key=lambda entry: entry[:2])
        elif not new[0] < entries[-2][0]:
            outside = new[0] < worst[0]
            (inner,) = yield from asked([middle + (middle - worst[2]) / (2 if outside else -2)])
            if not inner[0] < min(new[0], worst[0]):
                entries = ranked([best, *(yield from asked([best[2] + (p - best[2]) / 2 for _, _, p in entries[1:]]))])
                continue
            new = inner
        entries = ranked([*entries[:-1], new])
    return entries[0][0], entries[0][2]
