"""How far coefficients of several classes are from the minimiser's: `minimiser_bound.py` for the multinomial loss.

    F(θ) = sum of weight_i (log sum_c exp(θ_c·z_i) - θ_{y_i}·z_i) + l2·|w|²/2,      θ_c = (w_c, b_c),  p = softmax(θ·z)

*Which minimiser.* What all θ_c have in common changes no p, and only lengthens w. So among the minimisers is one with
sum_c θ_c = 0: the only one, but for the intercepts, with a penalty, and the shortest without. It is the minimiser of
F̃ = F + sum_j τ_j (sum_c θ_cj)²/2 for any τ > 0, and the bound is on the distance from it. F̃'s Hessian is

    H̃ = sum of weight_i (diag(p_i) - p_i p_i^T) ⊗ z_i z_i^T + l2 + 1 1^T ⊗ diag(τ)

*Near by.* u^T (diag p - p p^T) u = min_a sum_c p_c (u_c - a)², so that q_c >= r p_c for all c makes
diag q - q q^T >= r (diag p - p p^T); and that holds for any p >= 0 with a sum of at least one. Predictions that move by
up to δ each move no p_c by more than a factor e^{2δ}: m(ρ) = m e^{-2Bρ}, B the largest |T_c^T z_i| of a class.

*In floats.* Predictions are off by at most δ_i, and softmax in floats by a factor 1 ± (20 + 2k + |s_c - max s|) u for k
classes: exp by 8 u, its argument by |s_c - max s| u, the sum of exps by 8 u + k u + u sum_c p_c |s_c - max s|, the last
at most k u/e. Where p_c < `GONE` it counts as zero in H̃, and `FLOOR` covers it in the gradient. The others, times
1 + (3k + 40) u, have a sum of at least one, and are p of the proof; r is what δ_i and all these factors leave. Terms of
the entry (a, j), (b, k) of H̃ are at most sqrt(p_a) |z_j| sqrt(p_b) |z_k|, so that their sum is at most D_aj D_bk,
D_aj² = sum of weight_i p_ia z_ij², and rounding changes it by at most γ of that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anchorhead.in_context.minimiser_sums import (
    SAFE,
    UNIT,
    along,
    conditioner,
    fallen,
    flat,
    gamma,
    in_data_units,
    reach,
    sum_error,
    summed,
)
from anchorhead.in_context.minimiser_units import FLOOR, HUGE, Problem, Units

GONE = 2.0**-1000
MOST_NUMBERS = 2000
Array = np.ndarray


class Chances(NamedTuple):
    """p (n, classes), how far it may be off, p of the proof, and r (n,)."""

    p: Array
    error: Array
    raised: Array
    left: Array


class ClassBound:
    """The bounds of all classes. problem.y: the class of every example, from 0."""

    def __init__(self, problem: Problem, units: Units, columns: Array) -> None:
        """columns: as the data number them."""
        self.units, self.Z, self.columns, self.labels = units, units.Z, columns, problem.y.astype(int)
        self.sum_error = sum_error(len(units.Z))

    def of(self, coefficients: Array, intercepts: Array) -> Array | str:
        """(classes, d + 1), the intercept last; or why there are none."""
        pairs = zip(coefficients, intercepts, strict=True)
        whole = np.stack([self.units.coefficients(w, float(c), 0) for w, c in pairs])
        if whole.size > MOST_NUMBERS:
            return f"no bound is computed for more than {MOST_NUMBERS:,} coefficients of all classes"
        if not np.abs(whole).max(initial=0.0) <= HUGE:
            return "the coefficients are so large that floats do not bound their predictions"
        chances = self._chances(whole)
        tau = summed(self.Z**2, self.units.weights[:, None])[:, 0] / len(whole)
        gradient, error = self._gradient(chances, whole, tau)
        H, rounded = self._hessian(chances, tau)
        known = conditioner(H, rounded)
        if known is None:
            return flat(self.units, self.columns, "classes")
        T, least = known
        blocks = T.reshape(*whole.shape, -1)
        rate = 2 * max(reach(self.Z, block) for block in blocks)
        radius = fallen(along(T, gradient.ravel(), error.ravel()) / least * SAFE, rate)
        if isinstance(radius, str):
            return radius
        return np.stack([in_data_units(block, radius, self.units, 0) for block in blocks])

    def _chances(self, whole: Array) -> Chances:
        s, count = self.Z @ whole.T, len(whole)
        off = gamma(whole.shape[1] + 6) * (np.abs(self.Z) @ np.abs(whole.T)).max(1) + FLOOR
        below = s - s.max(1, keepdims=True)
        raw = np.exp(below)
        p = raw / raw.sum(1, keepdims=True)
        blur = 1.1 * UNIT * (20 + 2 * count - below)
        error = p * (np.expm1(2 * off)[:, None] + blur * np.exp(2 * off)[:, None])
        seen = p >= GONE
        lost = 2 * off + (np.where(seen, blur, 0.0)).max(1) + (3 * count + 50) * UNIT
        raised = np.where(seen, p * (1 + (3 * count + 40) * UNIT), 0.0)
        return Chances(p, error, raised, np.maximum(1 - lost * SAFE, 0.0))

    def _gradient(self, chances: Chances, whole: Array, tau: Array) -> tuple[Array, Array]:
        """Of F̃, (classes, columns), and how far it may be off."""
        weights, l2 = self.units.weights[:, None], self._penalty()
        first = chances.p - np.eye(len(whole))[self.labels]
        found = summed(self.Z, weights * first).T
        sizes = summed(np.abs(self.Z), weights * (self.sum_error * np.abs(first) + chances.error)).T
        common = tau * whole.sum(0)
        found = found + l2 * whole + common
        around = np.abs(found) + l2 * np.abs(whole) + tau * np.abs(whole).sum(0)
        return found, sizes * (1 + self.sum_error) * SAFE + (self.sum_error + gamma(len(whole) + 8)) * around + FLOOR

    def _hessian(self, chances: Chances, tau: Array) -> tuple[Array, Array]:
        """What H̃ is at least, and how far its entries may be off."""
        Z, p, weights = self.Z, chances.raised, self.units.weights * chances.left
        count, width = p.shape[1], Z.shape[1]
        H = np.empty((count, width, count, width))
        for a in range(count):
            for b in range(a, count):
                bent = p[:, a] * (1 - p[:, a]) if a == b else -p[:, a] * p[:, b]
                H[a, :, b] = summed(Z, (weights * bent)[:, None] * Z)
                H[b, :, a] = H[a, :, b].T
        sizes = np.sqrt(summed(weights[:, None] * p, Z**2) * (1 + self.sum_error) * SAFE + FLOOR).ravel()
        rounded = (self.sum_error * SAFE * np.outer(sizes, sizes) + FLOOR).reshape(H.shape)
        for j, l2 in enumerate(self._penalty()):
            extra = tau[j] + l2 * np.eye(count)
            H[:, j, :, j] += extra
            rounded[:, j, :, j] += self.sum_error * extra
        return H.reshape(count * width, -1), rounded.reshape(count * width, -1)

    def _penalty(self) -> Array:
        """On every column of Z; none on the intercept."""
        return np.append(self.units.l2, [0.0] * self.units.intercept)
