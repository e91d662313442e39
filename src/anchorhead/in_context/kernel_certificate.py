"""How far the predictions of one kernel ridge fit are from the method's own, whatever found its weights b.

f(q) = mean over j of k(q, x_j) β_j with (K/n + l2)β = y, k(q, x) = exp(-γ|q - x|²): what is predicted, in real numbers,
of the examples and labels as the floats that they are. The network has b, floats, and answers f~(q). For any c let
r = y - (K/n + l2)c. Norms are root mean squares. As in `kernel_ridge.py`, |mean_j k(q, x_j)d_j| <= ‖(K/n)^{1/2}d‖, so

    |f(q) - mean_j k(q, x_j)c_j| <= max_s sqrt(s - l2)/s ‖r‖ <= ‖r‖/(2 sqrt(l2)) =: R

*The answer.* A kernel of the network is exp of a score with the levels L_j and L_q of example and query (`kernels.py`):
L_j = -â|x_j|²/2 + δ_j, and δ_j is computed here, off by γ_(d+5) â|x_j|². With c_j = e^{δ_j}b_j, known to a factor
1 + τ, and |δ_q| <= λ: the network's mean is e^{δ_q} times that of k(q, x_j)c_j, and off by ε_g mean|b|
(`kernel_ridge.py`). So |f~(q) - f(q)| is at most, with C = mean|c| and |f| <= ‖y‖/(2 sqrt(l2)),

    R + (e^λ - 1) min(C, ‖y‖/(2 sqrt(l2)) + R) + e^λ τ C + ε_g mean|b|

where τ also has what lies between 1/length², of which ε_g speaks, and 2γ.

*Weights.* With S = diag(sqrt w_j), sqrt(w_j) <= 1, K is S K S, y is S y, and f(q) = mean_j k(q, x_j) sqrt(w_j) β_j, as
in `kernel_ridge.py`: the same holds with C = mean|S c|, δ_j what a level has beside its *offset* o_j, and e^{o_j}
within γ_8|o_j| of sqrt(w_j), relatively, which is counted with τ.

*The residual.* |x - x'|² by differences is right to γ_(d+4), γ times it to γ_(d+5) =: θ. Since z e^{-z} < 0.37, exp(-z)
moves by less than 0.38 θ, and exp itself errs by four units in the last place: an entry is off by κ = 0.38 θ + 9 u. K c
is summed in a tree of t levels, so that K c/n is off by κC + γ_(t+2)(1 + κ)C, and r by that and the four roundings of
y - K c/n - l2 c. l2 = alpha/n, the labels over their largest and sqrt(w_j) are rounded once or twice each, and
multiplied with, which is counted with them.
"""

from __future__ import annotations

import math

import torch
from flint import arb
from torch import Tensor

from anchorhead.dtypes import UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.in_context.kernel_ridge import KernelRidgeNetwork
from anchorhead.in_context.kernels import squared_distances
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.stability import gamma

U = UNIT["float64"]
TINY = 2.0**-900
"""More than all that underflow can lose here."""
ENTRIES = 2**21
"""Kernels at a time."""


def prediction_bounds(
    network: KernelRidgeNetwork, X: Tensor, Y: Tensor, b: Tensor, rate: float, roots: Tensor
) -> tuple[float, float]:
    """|f~ - f| for every query within the network's bounds, and the part of it that is left of the linear system.

    X (n, d), labels S Y and b (n, targets), rate: γ, roots: sqrt(w_j), (n,), whose logarithms the network had as
    offsets. The largest over targets.
    """
    found = [_of_one(network, X, y, w, rate, roots) for y, w in zip(Y.mT, b.mT, strict=True)]
    return max(whole for whole, _ in found), max(left for _, left in found)


def _of_one(
    network: KernelRidgeNetwork, X: Tensor, y: Tensor, b: Tensor, rate: float, roots: Tensor
) -> tuple[float, float]:
    n, d = X.shape
    scale = float(network.scale)
    lengths, offsets = X.square().sum(1), roots.log()
    furthest = float(offsets.abs().max())
    moved = (network.columns(Reading(), X).squeeze(-1) + offsets - offsets + scale * lengths / 2).double()
    c = b * moved.exp()
    counted = roots * c
    mean = roots * _kernel_mean(X, counted, rate)
    left = y - mean - network.l2 * c
    with precision():
        if not bool(c.isfinite().all() and left.isfinite().all()):
            return math.inf, math.inf
        C, known = _mean(counted), _root(left)
        entry = arb("0.38") * gamma(d + 5, U) + 14 * arb(U)
        tree = math.ceil(math.log2(n)) if n > 1 else 0
        lost = (entry + gamma(tree + 2, U) * (1 + entry)) * C
        lost += gamma(9, U) * (_root(y) + _root(mean) + 2 * network.l2 * _root(c)) + TINY
        half = 1 / (2 * arb(network.l2).sqrt()) * (1 + arb(2.0**-50))
        reach = (known + lost) * half
        level = network.level_error("query", network.unit).expm1()
        shift = (gamma(d + 5, U) * arb(scale) * arb(float(lengths.max())) * (1 + arb(2.0**-40))).expm1() + 12 * arb(U)
        spread = arb(d) * (arb(network.limits["x"]) + network.limits["query"]) ** 2 * (1 + arb(2.0**-20)) / 2
        shift += (abs(1 / arb(network.length) ** 2 - 2 * arb(rate)) * spread).expm1()
        shift += (gamma(8, U) * furthest).expm1()
        total = reach + level * C.min(_root(y) * half + reach) + (1 + level) * shift * C
        total += network.kernel_error("query", network.unit, furthest) * _mean(b) + TINY
        return (upper(total), upper(known * half)) if total.is_finite() else (math.inf, math.inf)


def _mean(values: Tensor) -> arb:
    """Above the mean of absolute values."""
    return arb(float(values.abs().mean())) * (1 + gamma(len(values) + 2, U)) + TINY


def _root(values: Tensor) -> arb:
    """Above the root mean square; of what is not beyond the largest float's root."""
    top = float(values.abs().max())
    if not 0 < top < math.inf:
        return arb(top)
    return arb(top) * arb(float((values / top).square().mean())).sqrt() * (1 + gamma(len(values) + 8, U))


def _kernel_mean(X: Tensor, c: Tensor, rate: float) -> Tensor:
    """K c/n, every sum a tree."""
    parts = []
    for rows in X.split(max(1, ENTRIES // len(X))):
        terms = squared_distances(rows, X).mul_(-rate).exp_().mul_(c)
        while terms.shape[1] > 1:
            half = (terms.shape[1] + 1) // 2
            odd = terms.shape[1] - half
            terms = torch.cat([terms[:, :odd] + terms[:, half:], terms[:, odd:half]], 1)
        parts.append(terms[:, 0])
    return torch.cat(parts) / len(X)
