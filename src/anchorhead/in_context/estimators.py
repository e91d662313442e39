"""scikit-learn's linear models, fitted by attention: fit gives the data to an in-context network as its prompt.

The problem is scikit-learn's, in its own coefficients: features are centred and scaled inside, and penalties scaled to
match (`fit.py`). `network_` is the last network that ran. `certificate_` says what its proof means for coef_ and
intercept_, in the units of the data: how far they are from the minimiser's where Newton's steps ran, else from those of
the same last steps in exact arithmetic; `outputs` has a bound for every coefficient and, last, the intercept. With
momentum, steps on other losses than squares are not known to contract, and then it says that nothing useful is known.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from scipy.optimize import brentq
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from anchorhead.in_context.fit import ROUND, Scaled, Solved, by_newton, descend, scaled
from anchorhead.in_context.losses import huber, logistic, poisson, squared
from anchorhead.in_context.newton import Newton
from anchorhead.proof.certificate import Certificate


class _Linear(BaseEstimator):
    """What the models share: checking, scaling, and where the results go."""

    def _data(self, X: Any, y: Any, **checks: Any) -> tuple[Scaled, np.ndarray]:
        X, y = validate_data(self, X, y, dtype=np.float64, **checks)
        return scaled(X, self.fit_intercept), y

    def _keep(self, data: Scaled, solved: Solved, shift: float = 0.0, scale: float = 1.0) -> None:
        coefficients, intercept = data.original(solved.w)
        self.coef_, self.intercept_ = scale * coefficients, scale * intercept + shift
        self.n_iter_, self.network_ = solved.steps, solved.network
        self.certificate_ = self._certificate(data, solved, shift, scale)
        if not solved.converged:
            warnings.warn(
                f"The gradient is not yet small after {solved.steps} steps; increase max_iter or the penalty.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _certificate(self, data: Scaled, solved: Solved, shift: float, scale: float) -> Certificate:
        """What the network's proof says of coef_ and intercept_, in the units of the data that fit was given."""
        network = solved.network
        own, off = network.certificate, network.certificate.bound
        if isinstance(network, Newton):
            said, off = "coef_ and intercept_ of the minimiser", off + network.to_optimum
        else:
            said = f"coef_ and intercept_ after the last {network.algorithm.steps} steps in exact arithmetic"
        found = scale * data.deviation(solved.w, off) + 4 * ROUND * (abs(self.intercept_) + abs(shift))
        outputs = tuple(float(v) for v in found[: len(data.scale) + int(data.intercept)])
        return replace(
            own,
            expression=said,
            domain=data.ranges,
            variables=tuple(f"x{j}" for j in range(len(data.ranges))),
            approximation=max(outputs),
            rounding=0.0,
            outputs=outputs,
            assumptions=(
                *own.assumptions,
                "of this fit only: its data as they were scaled inside, from the iterate where the last run began; "
                "x, w and w·x above are those of the scaled data",
            ),
        )

    def _decision(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        found: np.ndarray = X @ np.ravel(self.coef_) + self.intercept_
        return found


class _Regressor(RegressorMixin, _Linear):
    def predict(self, X: Any) -> np.ndarray:
        """The linear map that was learned."""
        return self._decision(X)

    def _squared(self, X: Any, y: Any, alpha: float, l1: float) -> Self:
        data, y = self._data(X, y, y_numeric=True)
        shift = float(y.mean()) if self.fit_intercept else 0.0
        size = float(np.sqrt(((y - shift) ** 2).mean())) or 1.0
        target = torch.tensor((y - shift) / size, dtype=torch.float64)
        l2, thin = data.penalties(alpha / len(y), 2), data.penalties(l1 / size, 1)
        solved = None if l1 else by_newton(data, target, l2, self.tol)
        if solved is None:
            solved = descend(squared(), data.X, target, l2, thin, self.tol, self.max_iter)
        self._keep(data, solved, shift, size)
        return self


class LinearRegression(_Regressor):
    """Ordinary least squares."""

    def __init__(self, *, fit_intercept: bool = True, tol: float = 1e-10, max_iter: int = 20_000) -> None:
        self.fit_intercept, self.tol, self.max_iter = fit_intercept, tol, max_iter

    def fit(self, X: Any, y: Any) -> LinearRegression:
        return self._squared(X, y, 0.0, 0.0)


class _Penalised(_Regressor):
    def __init__(
        self, alpha: float = 1.0, *, fit_intercept: bool = True, tol: float = 1e-10, max_iter: int = 20_000
    ) -> None:
        self.alpha, self.fit_intercept, self.tol, self.max_iter = alpha, fit_intercept, tol, max_iter


class Ridge(_Penalised):
    """Least squares with a penalty alpha·|w|²."""

    def fit(self, X: Any, y: Any) -> Ridge:
        return self._squared(X, y, _penalty("alpha", self.alpha), 0.0)


class Lasso(_Penalised):
    """Mean squared error/2 with a penalty alpha·|w|_1."""

    def fit(self, X: Any, y: Any) -> Lasso:
        return self._squared(X, y, 0.0, _penalty("alpha", self.alpha))


class LogisticRegression(ClassifierMixin, _Linear):
    """Two classes: mean logistic loss with a penalty |w|²/(2 C n)."""

    def __init__(
        self, C: float = 1.0, *, fit_intercept: bool = True, tol: float = 1e-9, max_iter: int = 20_000
    ) -> None:
        self.C, self.fit_intercept, self.tol, self.max_iter = C, fit_intercept, tol, max_iter

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any) -> LogisticRegression:
        data, y = self._data(X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            kinds = "class" if len(self.classes_) == 1 else "classes"
            raise ValueError(
                f"Only binary classification is supported: the labels have {len(self.classes_)} {kinds}, and two are "
                "needed."
            )
        l2 = data.penalties(1 / (_penalty("C", self.C) * len(y)), 2)
        target = torch.tensor(labels, dtype=torch.float64)
        self._keep(data, descend(logistic(), data.X, target, l2, [0.0] * len(l2), self.tol, self.max_iter, reach=32.0))
        coefficients, intercept = self.coef_, self.intercept_
        self.coef_: np.ndarray = coefficients[None, :]
        self.intercept_: Any = np.array([intercept])
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """w·x + intercept, positive for the second class."""
        return self._decision(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the two classes, by the two-key head for the sigmoid."""
        from anchorhead.compiler.compile import compile

        s = torch.tensor(self._decision(X), dtype=torch.float64)
        second = compile("sigmoid(x)", tol=1e-14)(s).numpy()
        return np.column_stack([1 - second, second])

    def predict(self, X: Any) -> np.ndarray:
        """The more likely class."""
        above = self._decision(X) > 0
        found: np.ndarray = self.classes_[above.astype(int)]
        return found


class PoissonRegressor(_Regressor):
    """Counts with a logarithmic link: mean exp(s) - y s with a penalty alpha·|w|²/2."""

    def __init__(
        self, alpha: float = 1.0, *, fit_intercept: bool = True, tol: float = 1e-9, max_iter: int = 20_000
    ) -> None:
        self.alpha, self.fit_intercept, self.tol, self.max_iter = alpha, fit_intercept, tol, max_iter

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def fit(self, X: Any, y: Any) -> PoissonRegressor:
        data, y = self._data(X, y, y_numeric=True)
        if (y < 0).any() or not y.sum() > 0:
            raise ValueError("Some labels are negative, or all are zero, which a Poisson distribution does not allow.")
        size = float(y.mean()) if self.fit_intercept else 1.0  # exp(s)/size is exp of s - log(size)
        target = torch.tensor(y / size, dtype=torch.float64)
        l2 = data.penalties(_penalty("alpha", self.alpha) / size, 2)
        solved = descend(poisson(), data.X, target, l2, [0.0] * len(l2), self.tol, self.max_iter, reach=2.0)
        self._keep(data, solved, math.log(size))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The expected count, exp of the linear map."""
        return np.exp(self._decision(X))


class HuberRegressor(_Regressor):
    """Least squares that is linear beyond epsilon times the scale, which is estimated along: scale_.

    For a given scale the network descends Huber's loss of y/scale; the scale solves
    scale² = sum of squared inlier residuals / (n - epsilon² · outliers), the condition for scikit-learn's objective.
    """

    def __init__(self, epsilon: float = 1.35, alpha: float = 0.0001, *, fit_intercept: bool = True, tol: float = 1e-9,
                 max_iter: int = 20_000) -> None:  # fmt: skip
        self.epsilon, self.alpha, self.fit_intercept = epsilon, alpha, fit_intercept
        self.tol, self.max_iter = tol, max_iter

    def fit(self, X: Any, y: Any) -> HuberRegressor:
        data, y = self._data(X, y, y_numeric=True)
        if not self.epsilon >= 1:
            raise ValueError(f"epsilon={self.epsilon!r} must be at least 1.")
        centre = float(np.median(y)) if self.fit_intercept else 0.0
        last: dict[str, Any] = {}
        spread = float(np.abs(y - centre).mean()) or 1.0

        def excess(log_scale: float) -> float:
            """How far the squared scale is from its condition, relatively, for the best fit at this scale."""
            scale = math.exp(log_scale)
            target = torch.tensor((y - centre) / scale, dtype=torch.float64)
            l2 = data.penalties(_penalty("alpha", self.alpha) * scale / len(y), 2)
            start = last["w"] * (last["scale"] / scale) if last else None
            solved = descend(huber(self.epsilon), data.X, target, l2, [0.0] * len(l2), self.tol, self.max_iter, start,
                             reach=256.0)  # fmt: skip
            last.update(w=solved.w, scale=scale, solved=solved)
            r = (data.X @ solved.w - target).abs()
            inside = r <= self.epsilon
            return float((r[inside] ** 2).sum() / len(y) + self.epsilon**2 * (~inside).double().mean()) - 1

        self.scale_ = self._scale(excess, math.log(spread))
        self._keep(data, last["solved"], centre, self.scale_)
        fitted = np.asarray(X, dtype=np.float64) @ self.coef_ + self.intercept_
        self.outliers_ = np.abs(y - fitted) > self.scale_ * self.epsilon
        return self

    def _scale(self, excess: Any, start: float) -> float:
        """The root, between scales too small and too large; a perfect fit has none, and keeps a small scale."""
        low, high = start - 1.0, start + 0.5
        for _ in range(12):
            if excess(high) < 0:
                break
            high += 1.0
        for _ in range(5):
            if excess(low) > 0:
                break
            low -= 3.0
        else:
            return math.exp(low + 3.0)
        root = float(brentq(excess, low, high, xtol=1e-8, rtol=1e-12))
        excess(root)
        return math.exp(root)


def _penalty(name: str, value: float) -> float:
    if not (isinstance(value, int | float | np.number) and math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}={value!r} must be a number that is not negative.")
    if name == "C" and value == 0:
        raise ValueError("C=0 must be positive.")
    return float(value)
