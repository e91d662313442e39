"""Kernel regression as scikit-learn estimators: fit keeps the data, predict gives them to a network as its prompt.

Columns are centred and labels scaled inside, which changes no prediction but for rounding. `network_` is the network
that runs, unless a query is further out than twice the examples: then one for that range is made. Of KernelRidge all
steps but the last are the same for every query, and fit takes them.
`certificate_` bounds in the units of the labels how far a prediction is from the method's own, for the examples and
queries as they are centred inside: of KernelRidge by what its weights leave of the linear system
(`kernel_certificate.py`), of NadarayaWatson by what is proved of its network.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from flint import arb
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from anchorhead.arithmetic import binary_ceiling
from anchorhead.digits import Up
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import AnchorheadError, InputError, ToleranceError
from anchorhead.in_context.bounds import SLACK
from anchorhead.in_context.coefficient_certificate import ASSUMPTIONS
from anchorhead.in_context.fit import inversions
from anchorhead.in_context.kernel_certificate import prediction_bounds
from anchorhead.in_context.kernel_inverse import WEAKEST, KernelInverseNetwork
from anchorhead.in_context.kernel_regression import KernelRegression, kernel_regression
from anchorhead.in_context.kernel_ridge import KernelRidgeNetwork, coefficients_for, enough_steps
from anchorhead.in_context.kernels import squared_distances
from anchorhead.in_context.linear_models import dense, read_weights
from anchorhead.in_context.network import no_file, stated
from anchorhead.progress import Progress, telling
from anchorhead.proof.certificate import Certificate
from anchorhead.warned import warn_caller

LEAST = 2.0**-20
"""The smallest bound on entries that is declared."""
ENTRIES = 2**24
"""Scores of one part of a prediction, after which progress is told."""
STEP_COST = 4.0
"""A step of Richardson's iteration beside one of Newton and Schulz, times the number of examples, in seconds."""
FEW = 12
"""The fewest steps that an inverse takes."""
COMPARED = 256
"""At about so many points answers are looked at where nothing is proved."""
UNSETTLED = 1e-6
"""What weights may leave, in units of the largest label, without a warning."""
VANISHED = 2.0**-60
"""An answer that is zero, in units of the largest label."""


class _Kernel(RegressorMixin, BaseEstimator):
    """What both share: checking, centring, and running the network."""

    progress: bool | Progress

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.target_tags.multi_output = True
        return tags

    @abstractmethod
    def _network(self, bounds: dict[str, float]) -> KernelRegression | KernelRidgeNetwork:
        """The network for prompts of these sizes."""

    @property
    @abstractmethod
    def _method(self) -> str:
        """What is predicted by, with its parameters."""

    def __sklearn_is_fitted__(self) -> bool:
        """Not after a fit that was refused."""
        return "certificate_missing_" in vars(self)

    def _fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        self.__dict__.pop("certificate_missing_", None)
        X, y = validate_data(self, X, y, dtype=np.float64, accept_sparse=True, y_numeric=True, multi_output=True)
        X = dense(X)
        if y.dtype.kind not in "biuf":
            raise InputError(
                f"y holds {y.dtype.name}, and {type(self).__name__} predicts numbers; encode the labels as numbers, or "
                "for classes use ah.in_context.LogisticRegression."
            )
        weights = read_weights(sample_weight, len(X))
        weights = np.ones(len(X)) if weights is None else weights
        self._most = float(weights.max())
        counting = weights / self._most > 0
        X, y, weights = X[counting], y[counting], weights[counting] / self._most
        self._centre, self._size = X.mean(0), float(np.abs(y).max()) or 1.0
        self._X, self._y = torch.tensor(X - self._centre), torch.tensor(y.T / self._size, dtype=torch.float64)
        self._roots = torch.tensor(weights).sqrt()
        reach = _power(self._X)
        with telling(f"fitting {type(self).__name__}", self.progress) as report:
            self.network_ = self._network({"x": reach, "query": 2 * reach, "y": 1.0})
            self.certificate_, self.certificate_missing_ = self._learn(report)
        return self

    @abstractmethod
    def _learn(self, report: Progress) -> tuple[Certificate | None, str]:
        """What is done before a query is there, and the certificate, or why there is none."""

    @abstractmethod
    def _answer(self, network: Any, query: torch.Tensor) -> torch.Tensor:
        """The answers of a network, (queries, targets), in units of the largest label."""

    def _columns(self) -> torch.Tensor:
        """Labels (n, targets)."""
        return self._y.reshape(-1, len(self._X)).mT

    def predict(self, X: Any) -> np.ndarray:
        """The method's prediction at every row."""
        check_is_fitted(self)
        X = dense(validate_data(self, X, reset=False, dtype=np.float64, accept_sparse=True))
        query = torch.tensor(X - self._centre)
        near = ~self._vanishing(query)
        found = np.zeros((len(query), self._columns().shape[1]))
        with telling(f"predicting by {type(self).__name__}", self.progress) as report:
            if near.any():
                found[near.numpy()] = self._answers(query[near], report) * self._size
        return found if self._y.ndim == 2 else found[:, 0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Refused: a fit has no file with a proof."""
        raise no_file(type(self).__name__)

    def _answers(self, query: torch.Tensor, report: Progress) -> np.ndarray:
        """In units of the largest label, (queries, targets)."""
        network, reach = self.network_, _power(query)
        if reach > network.limits["query"]:
            network = self._network(network.limits | {"query": reach})
        some, parts = max(1, ENTRIES // len(self._X)), []
        for part, at in enumerate(query.split(some)):
            report(f"{part * some:,} of {len(query):,} queries are answered from {len(self._X):,} examples")
            parts.append(self._answer(network, at).numpy())
        return np.concatenate(parts)

    def _vanishing(self, query: torch.Tensor) -> torch.Tensor:
        """Which queries are so far from all examples that their answer is zero within the certificate's bound."""
        return torch.zeros(len(query), dtype=torch.bool)

    def _stated(self, approximation: float, rounding: float) -> Certificate:
        """Of bounds in units of the largest label, which is divided by and multiplied with, rounded both times."""
        own = self.network_.certificate
        rounding += 2.0**-51 * self.network_.gain
        said = (
            "of this fit only: the examples and queries as they are centred inside, and the labels over their largest",
            "the domain is that of the queries, in the units of the data",
        )
        reach = self.network_.limits["query"]
        ends = np.nextafter(self._centre - reach, np.inf), np.nextafter(self._centre + reach, -np.inf)
        domain = tuple((float(low), float(high)) for low, high in zip(*ends, strict=True))
        return replace(own, expression=self._method, level="proved", domain=domain,
                       variables=tuple(f"x{j}" for j in range(len(domain))),
                       approximation=approximation * self._size * (1 + 2.0**-50),
                       rounding=rounding * self._size * (1 + 2.0**-50),
                       assumptions=(*ASSUMPTIONS, *said))  # fmt: skip


class UnprovedRegression(KernelRegression):
    """Kernel regression where rounding might, in the worst case, decide: all that is known is that answers are means.

    Of means in floats, weights with rounding; so two are apart by twice the largest label and what sums add.
    """

    def certified(self, said: str, error: Any, *assumptions: str) -> Certificate:
        size = arb(self.limits["y"]) * (1 + arb(SLACK))
        with precision():
            whole = upper(2 * size + self.summed(size, self.unit))
        return stated(said, dict(self.limits), self.unit_name, whole, 0.0, assumptions, "trivial")


class UncheckedRidge(KernelRidgeNetwork):
    """Kernel ridge regression for one fit, whose own certificate bounds it: for every prompt there may be none."""

    def _proved(self) -> Certificate:
        try:
            return super()._proved()
        except AnchorheadError:
            return self._trivial()


class NadarayaWatson(_Kernel):
    """The mean of the labels with weights exp(-|q - x|²/(2 bandwidth²)).

    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 7.0]
    >>> round(float(ah.in_context.NadarayaWatson(bandwidth=0.1).fit(X, y).predict([[1.0]])[0]), 3)
    3.0
    """

    def __init__(self, bandwidth: float = 1.0, *, progress: bool | Progress = True) -> None:
        self.bandwidth, self.progress = bandwidth, progress

    def fit(self, X: Any, y: Any, **others: Any) -> NadarayaWatson:
        """Keeps the examples; nothing is learned before a query is there. y may have several columns."""
        if others:
            raise InputError(
                f"NadarayaWatson.fit takes X and y, and was given {', '.join(others)}: all examples count alike here. "
                "Leave it out."
            )
        return self._fit(X, y)

    @property
    def _method(self) -> str:
        return f"Nadaraya-Watson regression of bandwidth {self.bandwidth:g}"

    def _network(self, bounds: dict[str, float]) -> KernelRegression:
        width = _positive("bandwidth", self.bandwidth)
        try:
            return kernel_regression(self._X.shape[1], width, examples=len(self._X), bounds=bounds)
        except ToleranceError:
            return UnprovedRegression(self._X.shape[1], len(self._X), width, bounds, torch.float64)

    def _learn(self, report: Progress) -> tuple[Certificate | None, str]:
        own = self.network_.certificate
        if own.level == "proved":
            return self._stated(own.approximation, own.rounding), ""
        few = (0.75 * self._X + 0.25 * self._X.roll(1, 0))[:: max(1, len(self._X) // COMPARED)]
        off = max(float((self.network_(self._X, y, few) - self.network_.exact(self._X, y, few)).abs().max())
                  for y in self._columns().mT)  # fmt: skip
        if not off <= UNSETTLED:
            raise ToleranceError(
                f"bandwidth={self.bandwidth!r} is so small beside the range of X that rounding in float64 decides: "
                f"between examples answers are off by up to {off:.1g} of the largest label. Use a larger bandwidth, or "
                "scale the columns."
            )
        return None, (
            f"rounding in float64 may, in the worst case, move predictions by as much as labels differ: bandwidth="
            f"{self.bandwidth!r} is small beside the range of X; at {len(few):,} points between examples they are off "
            f"by {off:.1e} of the largest label. Use a larger bandwidth, or scale the columns, for a certificate"
        )

    def _answer(self, network: Any, query: torch.Tensor) -> torch.Tensor:
        return torch.stack([network(self._X, y, query) for y in self._columns().mT], -1)


class KernelRidge(_Kernel):
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
        return beyond & (apart > 0) & (self._rate() * apart.square() >= needed)

    @property
    def _method(self) -> str:
        return f"kernel ridge regression of alpha {self.alpha:g} and gamma {self._rate():g}"

    def _rate(self) -> float:
        return _positive("gamma", 1 / self._X.shape[1] if self.gamma is None else self.gamma)

    def _network(self, bounds: dict[str, float]) -> KernelRidgeNetwork:
        n, features = self._X.shape
        rate = self._rate()
        penalty = _positive("alpha", self.alpha) / (n * self._most)
        length, left = math.sqrt(0.5 / rate), _positive("tol", self.tol)
        try:
            steps = few_steps(penalty, left)
            weakest = _least(self._X, self._roots, rate, penalty) if FEW * n < STEP_COST * steps else 0.0
            if weakest >= WEAKEST and n * inversions(1 + penalty, weakest) < STEP_COST * steps:
                return KernelInverseNetwork(features, n, length, penalty, weakest, bounds)
            return UncheckedRidge(features, n, length, penalty, enough_steps(penalty, left), coefficients_for(penalty),
                                  bounds, torch.float64)  # fmt: skip
        except ToleranceError as error:
            raise ToleranceError(
                f"alpha={self.alpha!r} is too small for {n:,} examples in float64: the kernel exp(-{rate:g} |x - x'|²) "
                "has eigenvalues so near zero that neither the iteration nor an inverse reaches its solution. Increase "
                "alpha, or gamma."
            ) from error
        except AnchorheadError as error:
            said = (
                f"{error} Here l2 is alpha/{n * self._most:.6g}, alpha={self.alpha!r}, and length is "
                f"sqrt(1/(2 gamma)), gamma={rate:g}."
            )
            raise type(error)(said) from error

    def _learn(self, report: Progress) -> tuple[Certificate | None, str]:
        network: Any = self.network_
        labels, limit = self._columns() * self._roots.unsqueeze(-1), float(self._y.abs().max())
        self._b = network.learned(self._X, labels, self._offsets(), report)
        report(f"bounding what is left of {len(self._X):,} equations")
        bound, left = prediction_bounds(network, self._X, labels, self._b, self._rate(), self._roots)
        if not left <= max(UNSETTLED, self.tol, bound / 2):
            warn_caller(
                f"The weights leave an error of {Up(left):.1e} of the largest label; increase alpha={self.alpha!r}.",
                ConvergenceWarning,
            )
        if not bound < limit:
            return None, (
                f"rounding in float64 may move predictions by {Up(bound):.1e} of the largest label: "
                f"alpha={self.alpha!r} is small beside the rounding of the kernel; increase alpha, or gamma"
            )
        return self._stated(bound + VANISHED, 0.0), ""

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


def _power(X: torch.Tensor) -> float:
    """A bound on absolute entries: the next power of two."""
    return binary_ceiling(max(float(X.abs().max()) if X.numel() else 0.0, LEAST))


def _positive(name: str, value: Any) -> float:
    if not (isinstance(value, int | float | np.number) and math.isfinite(value) and value > 0):
        raise InputError(f"{name}={value!r} must be a positive finite number.")
    return float(value)
