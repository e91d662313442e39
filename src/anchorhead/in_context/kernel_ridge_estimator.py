"""Kernel ridge regression as a scikit-learn estimator.

All steps of the network but the last are the same for every query, and fit takes them. `certificate_` is for what these
weights leave of the linear system (`kernel_certificate.py`). Where that says nothing, the answers at and between
examples are looked at, and a fit in which rounding decides is refused.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning

from anchorhead.digits import Up
from anchorhead.errors import AnchorheadError, ToleranceError
from anchorhead.in_context.bounds import positive
from anchorhead.in_context.fit import inversions
from anchorhead.in_context.kernel_certificate import prediction_bounds
from anchorhead.in_context.kernel_estimators import COMPARED, UNSETTLED, Kernel
from anchorhead.in_context.kernel_inverse import WEAKEST, KernelInverseNetwork
from anchorhead.in_context.kernel_ridge import KernelRidgeNetwork, coefficients_for, enough_steps
from anchorhead.in_context.kernels import squared_distances
from anchorhead.progress import Progress
from anchorhead.proof.certificate import Certificate
from anchorhead.warned import warn_caller

STEP_COST = 4.0
"""A step of Richardson's iteration beside one of Newton and Schulz, times the number of examples, in seconds."""
FEW = 12
"""The fewest steps that an inverse takes."""
UNKNOWN = 1e-3
"""Answers that rounding moves by more, in units of the largest label, are none."""
WIDE = 2.0**-30
"""Levels of scores that may be off by more are those of data that are wide beside the kernel's length."""
VANISHED = 2.0**-60
"""An answer that is zero, in units of the largest label."""


class UncheckedRidge(KernelRidgeNetwork):
    """Kernel ridge regression for one fit, whose own certificate bounds it: for every prompt there may be none."""

    def _proved(self) -> Certificate:
        try:
            return super()._proved()
        except AnchorheadError:
            return self._trivial()


class KernelRidge(Kernel):
    """scikit-learn's KernelRidge(alpha, kernel="rbf", gamma): kernel exp(-gamma |x - x'|²), (K + alpha) dual_coef = y.

    gamma: 1/features unless given. tol: what the iteration may leave, in units of the largest label.

    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 7.0]
    >>> ah.in_context.KernelRidge(alpha=0.1).fit(X, y).predict([[1.5]]).shape
    (1,)
    """

    def __init__(self, alpha: float = 1.0, *, gamma: float | None = None, tol: float = 1e-10,
                 progress: bool | Progress = True) -> None:  # fmt: skip
        self.alpha, self.gamma, self.tol, self.progress = alpha, gamma, tol, progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelRidge:
        """Finds the examples' weights in the answers by the network; sample_weight is one number for each example."""
        return self._fit(X, y, sample_weight)

    def _vanishing(self, query: torch.Tensor) -> torch.Tensor:
        """An answer is the mean of kernel times weights, at most the largest kernel times the largest weight."""
        apart = (query.abs().amax(1) - self._X.abs().max()) * (1 - 2.0**-40)
        needed = math.log(max(float(self._b.abs().max()), 1.0)) - math.log(VANISHED)
        beyond = query.abs().amax(1) > self.network_.limits["query"]
        return beyond & (apart > 0) & (self._rate * apart.square() >= needed)

    @property
    def _method(self) -> str:
        return f"kernel ridge regression of alpha {self.alpha:g} and gamma {self._gamma:g}"

    @property
    def _narrow(self) -> tuple[str, str]:
        return f"gamma={self._gamma:.6g} is so large", "a smaller gamma"

    @property
    def _gamma(self) -> float:
        return positive("gamma", 1 / self.n_features_in_ if self.gamma is None else self.gamma)

    @property
    def _rate(self) -> float:
        """gamma in the kernel's unit."""
        return self._gamma * self.unit_ * self.unit_

    def _units(self) -> float:
        return math.ldexp(1.0, -math.frexp(self._gamma)[1] // 2)

    def _network(self, bounds: dict[str, float]) -> KernelRidgeNetwork:
        n, features = self._X.shape
        rate = self._rate
        penalty = positive("alpha", self.alpha) / (n * self._most)
        length, left = math.sqrt(0.5 / rate), positive("tol", self.tol)
        try:
            steps = few_steps(penalty, left)
            weakest = _least(self._X, self._roots, rate, penalty) if FEW * n < STEP_COST * steps else 0.0
            if weakest >= WEAKEST and n * inversions(1 + penalty, weakest) < STEP_COST * steps:
                return KernelInverseNetwork(features, n, length, penalty, weakest, bounds)
            return UncheckedRidge(features, n, length, penalty, enough_steps(penalty, left), coefficients_for(penalty),
                                  bounds, torch.float64)  # fmt: skip
        except ToleranceError as error:
            raise ToleranceError(
                f"alpha={self.alpha!r} is too small for {n:,} examples in float64: the kernel exp(-{self._gamma:g} "
                "|x - x'|²) has eigenvalues so near zero that neither the iteration nor an inverse reaches its "
                "solution. Increase alpha, or gamma."
            ) from error
        except AnchorheadError as error:
            said = (
                f"{error} Here l2 is alpha/{n * self._most:.6g}, alpha={self.alpha!r}, and length is "
                f"sqrt(1/(2 gamma)) over {self.unit_:g}, gamma={self._gamma:g}."
            )
            raise type(error)(said) from error

    def _further(self, reach: float) -> KernelRidgeNetwork:
        """Of which the last step alone is run."""
        own, (n, features) = self.network_, self._X.shape
        return UncheckedRidge(features, n, own.length, own.l2, 1, (1.0, 0.0), own.limits | {"query": reach},
                              torch.float64)  # fmt: skip

    def _learn(self, report: Progress) -> tuple[Certificate | None, str]:
        network: Any = self.network_
        labels, limit = self._columns() * self._roots.unsqueeze(-1), float(self._y.abs().max())
        self._b = network.learned(self._X, labels, self._offsets(), report)
        report(f"bounding what is left of {len(self._X):,} equations")
        bound, left = prediction_bounds(network, self._X, labels, self._b, self._rate, self._roots)
        off = 0.0 if bound < limit else self._off()
        if not (math.isfinite(left) and off <= UNKNOWN):
            far = f"off by up to {off:.1g} of the largest label" if math.isfinite(off) else "no numbers"
            raise self._decided(f"at and between examples answers are {far}")
        if not left <= max(UNSETTLED, self.tol, bound / 2 if bound < limit else 0.0):
            warn_caller(
                f"The weights may leave an error of up to {Up(left):.1e} of the largest label, as far as what they "
                f"leave of the linear system bounds it; increase alpha={self.alpha!r}"
                f"{', or decrease gamma' * self._wide}.",
                ConvergenceWarning,
            )
        return (self._stated(bound + VANISHED, 0.0), "") if bound < limit else (None, self._missing(bound, off))

    def _off(self) -> float:
        """How far answers at examples, and between them, are from the mean of kernels and weights, plainly."""
        some = slice(None, None, max(1, len(self._X) // COMPARED))
        few = torch.cat([self._X[some], (0.75 * self._X + 0.25 * self._X.roll(1, 0))[some]])
        kernel = squared_distances(few, self._X).mul_(-self._rate).exp_()
        plain = kernel @ (self._roots.unsqueeze(-1) * self._b) / len(self._X)
        return float((self._answer(self.network_, few) - plain).abs().max())

    def _missing(self, bound: float, off: float) -> str:
        """Why there is no certificate."""
        cause = f", and gamma={self._gamma:.6g} is large beside the range of X" if self._wide else ""
        return (
            f"rounding in float64 may move predictions by {Up(bound):.1e} of the largest label: "
            f"alpha={self.alpha!r} is small beside the rounding of the kernel{cause}; at and between examples answers "
            f"are off by {off:.1e}; increase alpha, or {'decrease ' * self._wide}gamma"
        )

    @property
    def _wide(self) -> bool:
        """Whether the data are wide beside the kernel's length."""
        return bool(self.network_.level_error("x", self.network_.unit) > WIDE)

    def _answer(self, network: Any, query: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = network.answered(self._X, self._b, query, self._offsets())
        return found

    def _offsets(self) -> torch.Tensor:
        return self._roots.log().unsqueeze(-1)


def few_steps(l2: float, tol: float) -> float:
    """Of Richardson's iteration; infinite where they are too many."""
    try:
        return enough_steps(l2, tol)
    except ToleranceError:
        return math.inf


def _least(X: torch.Tensor, roots: torch.Tensor, rate: float, l2: float) -> float:
    """The least eigenvalue of S K S/n + l2, plainly, to half of it; at least l2."""
    kernel = squared_distances(X, X).mul_(-rate).exp_().mul_(roots).mul_(roots.unsqueeze(-1))
    values = torch.linalg.eigvalsh(kernel / len(X))
    return max(l2, float(values[0]) / 2)
