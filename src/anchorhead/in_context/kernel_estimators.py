"""Kernel regression as scikit-learn estimators: fit keeps the data, predict gives them to a network as its prompt.

Columns are centred and labels scaled inside, which changes no prediction but for rounding. `network_` is the network
that a prediction runs, unless a query is further out than twice the examples: then one for that range is made.
`certificate_` is its certificate in the units of the labels: how far a prediction is from the method's own, for the
examples and queries as they are centred inside.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from anchorhead.arithmetic import binary_ceiling
from anchorhead.errors import AnchorheadError
from anchorhead.in_context.kernel_regression import KernelRegression, kernel_regression
from anchorhead.in_context.kernel_ridge import KernelRidgeNetwork, enough_steps, kernel_ridge
from anchorhead.in_context.linear_models import dense
from anchorhead.in_context.network import no_file
from anchorhead.progress import Progress, telling
from anchorhead.proof.certificate import Certificate

LEAST = 2.0**-20
"""The smallest bound on entries that is declared."""
ENTRIES = 2**24
"""Scores of one part of a prediction, after which progress is told."""


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

    def fit(self, X: Any, y: Any) -> _Kernel:
        """Keeps the examples; nothing is learned before a query is there. y may have several columns."""
        X, y = validate_data(self, X, y, dtype=np.float64, accept_sparse=True, y_numeric=True, multi_output=True)
        X = dense(X)
        self._centre, self._size = X.mean(0), float(np.abs(y).max()) or 1.0
        self._X, self._y = torch.tensor(X - self._centre), torch.tensor(y.T / self._size, dtype=torch.float64)
        reach = _power(self._X)
        self.network_ = self._network({"x": reach, "query": 2 * reach, "y": 1.0})
        self.certificate_ = self._certificate()
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The method's prediction at every row."""
        check_is_fitted(self)
        X = dense(validate_data(self, X, reset=False, dtype=np.float64, accept_sparse=True))
        query = torch.tensor(X - self._centre)
        near = ~self._vanishing(query)
        columns = self._y.reshape(-1, len(self._X))
        found = np.zeros((len(query), len(columns)))
        with telling(f"predicting by {type(self).__name__}", self.progress) as report:
            if near.any():
                found[near.numpy()] = self._answers(columns, query[near], report) * self._size
        return found if self._y.ndim == 2 else found[:, 0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Refused: a fit has no file with a proof."""
        raise no_file(type(self).__name__)

    def _answers(self, columns: torch.Tensor, query: torch.Tensor, report: Progress) -> np.ndarray:
        """In units of the largest label, (queries, targets): parts of the queries, or all where a run is long."""
        network, reach = self.network_, _power(query)
        if reach > network.limits["query"]:
            network = self._network(network.limits | {"query": reach})
        some = max(1, ENTRIES // len(self._X)) if network.steps == 0 else len(query)
        parts = []
        for part, at in enumerate(query.split(some)):
            for target, y in enumerate(columns):
                report(
                    f"{part * some:,} of {len(query):,} queries are answered from {len(self._X):,} examples, target "
                    f"{target + 1} of {len(columns)}" + (f" in {network.steps:,} steps" if network.steps else "")
                )
                parts.append(network(self._X, y, at).numpy())
        rows = [np.stack(parts[i : i + len(columns)], -1) for i in range(0, len(parts), len(columns))]
        return np.concatenate(rows)

    def _vanishing(self, query: torch.Tensor) -> torch.Tensor:
        """Which queries are so far from all examples that their answer is zero within the certificate's bound."""
        return torch.zeros(len(query), dtype=torch.bool)

    def _certificate(self) -> Certificate:
        """The network's, times the labels' scale; their quotient and the answer's product with it are rounded too."""
        own = self.network_.certificate
        rounding = own.rounding + 2.0**-51 * self.network_.gain
        said = "of this fit only: the examples as they are centred inside and the labels over their largest"
        return replace(own, approximation=own.approximation * self._size * (1 + 2.0**-50),
                       rounding=rounding * self._size * (1 + 2.0**-50),
                       assumptions=(*own.assumptions, said))  # fmt: skip


class NadarayaWatson(_Kernel):
    """The mean of the labels with weights exp(-|q - x|²/(2 bandwidth²)).

    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 7.0]
    >>> round(float(ah.in_context.NadarayaWatson(bandwidth=0.1).fit(X, y).predict([[1.0]])[0]), 3)
    3.0
    """

    def __init__(self, bandwidth: float = 1.0, *, progress: bool | Progress = True) -> None:
        self.bandwidth, self.progress = bandwidth, progress

    def _network(self, bounds: dict[str, float]) -> KernelRegression:
        width = _positive("bandwidth", self.bandwidth)
        return kernel_regression(self._X.shape[1], width, examples=len(self._X), bounds=bounds)


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

    def _vanishing(self, query: torch.Tensor) -> torch.Tensor:
        """An answer is the sum of kernel times dual_coef, at most the largest kernel times n |y|/alpha."""
        apart = (query.abs().amax(1) - self._X.abs().max()) * (1 - 2.0**-40)
        needed = math.log(len(self._X)) - math.log(self.alpha) - math.log(self.network_.certificate.bound) + 1
        beyond = query.abs().amax(1) > self.network_.limits["query"]
        return beyond & (apart > 0) & (self._rate() * apart.square() >= needed)

    def _rate(self) -> float:
        return _positive("gamma", 1 / self._X.shape[1] if self.gamma is None else self.gamma)

    def _network(self, bounds: dict[str, float]) -> KernelRidgeNetwork:
        n, features = self._X.shape
        rate = self._rate()
        penalty = _positive("alpha", self.alpha) / n
        left = _positive("tol", self.tol)
        try:
            steps = enough_steps(penalty, left)
            return kernel_ridge(features, math.sqrt(0.5 / rate), penalty, steps, examples=n, bounds=bounds)
        except AnchorheadError as error:
            said = (
                f"{error} Here l2 is alpha/{n}, alpha={self.alpha!r}, and length is sqrt(1/(2 gamma)), gamma={rate:g}."
            )
            raise type(error)(said) from error


def _power(X: torch.Tensor) -> float:
    """A bound on absolute entries: the next power of two."""
    return binary_ceiling(max(float(X.abs().max()) if X.numel() else 0.0, LEAST))


def _positive(name: str, value: Any) -> float:
    if not (isinstance(value, int | float | np.number) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name}={value!r} must be a positive finite number.")
    return float(value)
