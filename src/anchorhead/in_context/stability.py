"""How far the network's iterates can be from the algorithm's, proved for every prompt in the bounds.

One step of the algorithm is G(w) = prox(w - η(∇f(w) + l2·w)), one of the network Ĝ(w) = G(w) + e(w). Two facts:

*Error of a step.* In each coordinate the gradient errs by at most the mean over examples of |head - phi|·|p + q y|·|x|,
so ‖e(w)‖ <= E with the heads' proved errors and the bounds. Rounding is added (`certificate.py`). It is E for the
network's own iterate, so only that needs to be in the bounds, which the network checks as it runs.

*Spreading.* By the mean value theorem ∇f(v) - ∇f(w) = M(v - w), M = mean of m_i x_i x_i^T with m_i between the least
and the largest slope of phi between v·x_i and w·x_i. So M's eigenvalues lie in [min(slope, 0)·Λ, slope·Λ], Λ the
largest eigenvalue of X^T X/n, and ‖G(v) - G(w)‖ <= q‖v - w‖ with q = max |1 - η(λ + l2)| over that range; prox, soft
thresholding, is nonexpansive. For a convex loss and η <= 2/L, L = slope·Λ + l2, q is at most 1.

Together D_{t+1} <= q D_t + E: the deviation grows at most linearly, D_T <= T·E, for a convex loss, and stays below
E/(1 - q) if q < 1. (The paper leaves many steps open.)

*Where the algorithm goes.* v is the algorithm's own iterate, and nobody checks that. But ‖v - w‖ <= D_t, so v·x_i is
within D_t·sqrt(d)·|x| of w·x_i. Slopes are therefore taken over a margin beyond the bounds, and the recursion holds as
long as D_t sqrt(d)|x| stays below the margin; `certificate.py` takes the first of a few margins that suffices.

*Momentum.* With D_t the deviation of w_t, D_{t+1} <= (q + μ)D_t + μ D_{t-1} + E holds always, and grows geometrically.
For a squared loss M is the same in all steps, and the deviation is a sum of impulse responses of
z² - (1 + μ - ηλ)z + μ; a response after s steps is a sum of s + 1 products of roots, at most (s + 1)r^s with r the
largest root's size over the eigenvalues: where the roots are complex √μ, else largest at an end of the range.

All of this is computed in ball arithmetic, and every D_t is a float above it.
"""

from __future__ import annotations

from dataclasses import dataclass

from flint import arb

from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.in_context.bounds import SLACK


@dataclass(frozen=True)
class Spread:
    """Eigenvalues of the Hessian with its l2 part lie in [low, high]; quadratic: it is the same in all steps."""

    low: float
    high: float
    quadratic: bool


def gamma(count: float, unit: float | arb) -> arb:
    """kρ/(1 - kρ), the relative error of k roundings; infinite where k is too large for that."""
    product = arb(count) * unit
    return product / (1 - product) if product < 0.5 else arb("inf")


def rounded_products(features: int, x: float, w: float, dtype: str) -> float:
    """How far w·x may be from its rounded value, for entries up to x and w: γ_d of the sum of absolute products."""
    with precision():
        size = arb(features) * x * w * (1 + arb(SLACK)) ** 2
        return upper(gamma(features, UNIT[dtype]) * size + features * arb(LEAST_NORMAL[dtype]))


def contraction(spread: Spread, rate: float) -> arb:
    """q: how much a step without momentum may spread two iterates."""
    return abs(1 - arb(rate) * spread.low).max(abs(1 - arb(rate) * spread.high))


def deviations(steps: int, error: float, spread: Spread, rate: float, momentum: float) -> list[float]:
    """D_0, ..., D_T."""
    with precision():
        if momentum and spread.quadratic:
            return _responses(steps, error, _largest_root(spread, rate, momentum))
        q, found, before = contraction(spread, rate), [0.0], 0.0
        for _ in range(steps):
            here = found[-1]
            found.append(upper((q + momentum) * here + arb(momentum) * before + error))
            before = here
        return found


def _responses(steps: int, error: float, root: arb) -> list[float]:
    """Sums of (s + 1) root^s, times the error."""
    found, power = [0.0], arb(1)
    for s in range(steps):
        found.append(upper(found[-1] + error * (s + 1) * power))
        power = arb(upper(power * root))
    return found


def _largest_root(spread: Spread, rate: float, momentum: float) -> arb:
    largest = arb(momentum).sqrt()
    for eigenvalue in (spread.low, spread.high):
        half = abs(1 + arb(momentum) - arb(rate) * eigenvalue) / 2
        inner = half * half - momentum
        if not inner <= 0:
            largest = largest.max(half + inner.max(arb(0)).sqrt())
    return largest
