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
- products of matrices, least squares, orthogonal decompositions and softmax in such sums;
- `descend`, Nelder and Mead's search, where ties go to the older point.

A power of a number goes through `power` or products: the C library's pow, which ** means, is not correctly rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache

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


def decades(low: float, high: float, count: int) -> Array:
    """Numbers in geometric progression from end to end of an interval; none where it holds zero."""
    if low <= 0 <= high:
        return np.zeros(0)
    return geometric(low, high, count) if low > 0 else -geometric(-low, -high, count)


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


def softmax(scores: Array) -> Array:
    """Over the last axis but one, which is that of the keys."""
    weights = exp(scores - np.maximum.reduce(scores, -2, keepdims=True))
    weights /= np.add.reduce(weights, -2, keepdims=True)
    return weights
