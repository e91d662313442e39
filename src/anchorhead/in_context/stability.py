"""How far the network's iterates can be from the algorithm's, proved for every prompt in the bounds.

One step of the algorithm is G(w) = prox(w - η(∇f(w) + l2·w)), one of the network Ĝ(w) = G(w) + e(w). Two facts:

*Error of a step.* In each coordinate the gradient errs by at most the mean over examples of |head - phi|·|p + q y|·|x|,
so ‖e(w)‖ <= E with the heads' proved errors and the bounds. Rounding is added: w·x is a sum of d products (γ_d of the
sum of absolute values, γ_k = kρ/(1 - kρ)), the mean a sum of n (γ_n), and a coordinate passes a few more roundings. It
is E for the network's own iterate, so only that needs to be in the bounds, which the network checks as it runs.

*Spreading.* By the mean value theorem ∇f(v) - ∇f(w) = M(v - w), M = mean of m_i x_i x_i^T with m_i between the least
and the largest slope of phi. So M's eigenvalues lie in [min(slope, 0)·Λ, slope·Λ], Λ the largest eigenvalue of X^T X/n,
and ‖G(v) - G(w)‖ <= q‖v - w‖ with q = max |1 - η(λ + l2)| over that range; prox, soft thresholding, is nonexpansive.
For a convex loss and η <= 2/L, L = slope·Λ + l2, q is at most 1.

Together D_{t+1} <= q D_t + E: the deviation grows at most linearly, D_T <= T·E, for a convex loss, and stays below
E/(1 - q) if q < 1. (The paper leaves many steps open.)

*Momentum.* With D_t the deviation of w_t, D_{t+1} <= (q + μ)D_t + μ D_{t-1} + E holds always, and grows geometrically.
For a squared loss M is the same in all steps, and the deviation is a sum of impulse responses of
z² - (1 + μ - ηλ)z + μ; a response after s steps is a sum of s + 1 products of roots, at most (s + 1)r^s with r the
largest root's size over the eigenvalues: where the roots are complex √μ, else largest at an end of the range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24}


@dataclass(frozen=True)
class Spread:
    """Eigenvalues of the Hessian with its l2 part lie in [low, high]; quadratic: it is the same in all steps."""

    low: float
    high: float
    quadratic: bool


def gamma(count: float, unit: float) -> float:
    """kρ/(1 - kρ), the relative error of k roundings."""
    product = count * unit
    return product / (1 - product) if product < 0.5 else math.inf


def contraction(spread: Spread, rate: float) -> float:
    """q: how much a step without momentum may spread two iterates."""
    return max(abs(1 - rate * spread.low), abs(1 - rate * spread.high))


def deviations(steps: int, error: float, spread: Spread, rate: float, momentum: float) -> list[float]:
    """D_0, ..., D_T."""
    q = contraction(spread, rate)
    if 1 < q < 1 + 1e-12 and spread.low >= 0:
        q = 1.0  # 1 - η·2/η in floats
    found = [0.0]
    if momentum and spread.quadratic:
        root = _largest_root(spread, rate, momentum)
        for s in range(steps):
            found.append(found[-1] + error * _response(s, root))
        return [up(v) for v in found]
    before = 0.0
    for _ in range(steps):
        here = found[-1]
        after = (q + momentum) * here + (momentum * before if momentum else 0.0) + error
        before = here
        found.append(up(after))
    return found


def up(value: float) -> float:
    """A little more, for the few roundings of the bound's own arithmetic."""
    return value * (1 + 1e-14)


def _response(s: int, root: float) -> float:
    if root <= 1:
        return (s + 1) * root**s
    log = math.log(s + 1) + s * math.log(root)
    return math.exp(log) if log < 700 else math.inf


def _largest_root(spread: Spread, rate: float, momentum: float) -> float:
    sizes = []
    for eigenvalue in (spread.low, spread.high):
        half = abs(1 + momentum - rate * eigenvalue) / 2
        inner = half * half - momentum
        sizes.append(math.sqrt(momentum) if inner <= 0 else half + math.sqrt(inner))
    return max(*sizes, math.sqrt(momentum))


def norm(values: Sequence[float]) -> float:
    """The Euclidean norm."""
    return math.sqrt(math.fsum(v * v for v in values))
