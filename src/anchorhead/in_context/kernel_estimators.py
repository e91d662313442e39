"""Kernel regression as scikit-learn estimators: fit keeps the data, predict gives them to a network as its prompt.

Columns are centred and labels scaled inside, which changes no prediction but for rounding. `network_` is the network
that a prediction runs, unless a query is further out than twice the examples: then one for that range is made.
`certificate_` is its certificate in the units of the labels: how far a prediction is from the method's own, for the
examples and queries as they are centred inside.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from anchorhead.arithmetic import binary_ceiling
from anchorhead.in_context.kernel_regression import KernelRegression, kernel_regression
from anchorhead.in_context.kernel_ridge import KernelRidgeNetwork, enough_steps, kernel_ridge
from anchorhead.proof.certificate import Certificate

LEAST = 2.0**-20
"""The smallest bound on entries that is declared."""


class _Kernel(RegressorMixin, BaseEstimator):
    """What both share: checking, centring, and running the network."""

    @abstractmethod
    def _network(self, bounds: dict[str, float]) -> KernelRegression | KernelRidgeNetwork:
        """The network for prompts of these sizes."""

    def fit(self, X: Any, y: Any) -> _Kernel:
        """Keeps the examples; nothing is learned before a query is there."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self._centre, self._size = X.mean(0), float(np.abs(y).max()) or 1.0
        self._X, self._y = torch.tensor(X - self._centre), torch.tensor(y / self._size, dtype=torch.float64)
        reach = _power(self._X)
        self.network_ = self._network({"x": reach, "query": 2 * reach, "y": 1.0})
        self.certificate_ = self._certificate()
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The method's prediction at every row."""
        check_is_fitted(self)
        query = torch.tensor(validate_data(self, X, reset=False, dtype=np.float64) - self._centre)
        network, reach = self.network_, _power(query)
        if reach > network.limits["query"]:
            network = self._network(network.limits | {"query": reach})
        found: np.ndarray = network(self._X, self._y, query).numpy() * self._size
        return found

    def _certificate(self) -> Certificate:
        """The network's, times the labels' scale; their quotient and the answer's product with it are rounded too."""
        own = self.network_.certificate
        rounding = own.rounding + 2.0**-51 * self.network_.gain
        said = "of this fit only: the examples as they are centred inside and the labels over their largest"
        return replace(own, approximation=own.approximation * self._size * (1 + 2.0**-50),
                       rounding=rounding * self._size * (1 + 2.0**-50),
                       assumptions=(*own.assumptions, said))  # fmt: skip


class NadarayaWatson(_Kernel):
    """The mean of the labels with weights exp(-|q - x|²/(2 bandwidth²))."""

    def __init__(self, bandwidth: float = 1.0) -> None:
        self.bandwidth = bandwidth

    def _network(self, bounds: dict[str, float]) -> KernelRegression:
        width = _positive("bandwidth", self.bandwidth)
        return kernel_regression(self._X.shape[1], width, examples=len(self._X), bounds=bounds)


class KernelRidge(_Kernel):
    """scikit-learn's KernelRidge(alpha, kernel="rbf", gamma): kernel exp(-gamma |x - x'|²), (K + alpha) dual_coef = y.

    gamma: 1/features unless given. tol: what the iteration may leave, in units of the largest label.
    """

    def __init__(self, alpha: float = 1.0, *, gamma: float | None = None, tol: float = 1e-10) -> None:
        self.alpha, self.gamma, self.tol = alpha, gamma, tol

    def _network(self, bounds: dict[str, float]) -> KernelRidgeNetwork:
        n, features = self._X.shape
        rate = _positive("gamma", 1 / features if self.gamma is None else self.gamma)
        penalty = _positive("alpha", self.alpha) / n
        steps = enough_steps(penalty, _positive("tol", self.tol))
        return kernel_ridge(features, math.sqrt(0.5 / rate), penalty, steps, examples=n, bounds=bounds)


def _power(X: torch.Tensor) -> float:
    """A bound on absolute entries: the next power of two."""
    return binary_ceiling(max(float(X.abs().max()) if X.numel() else 0.0, LEAST))


def _positive(name: str, value: Any) -> float:
    if not (isinstance(value, int | float | np.number) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name}={value!r} must be a positive finite number.")
    return float(value)
