"""scikit-learn's linear models, fitted by attention: fit gives the data to an in-context network as its prompt.

The problem is scikit-learn's, in its own coefficients: features are centred and scaled inside, and penalties scaled to
match. From the data follow the bounds, a learning rate of 1/L and a momentum; a network of a few hundred steps is made
for them and run, from where the last run ended, until the objective's gradient is small. `network_` is that network,
`certificate_` its proof. Least squares without an l1 penalty takes Newton's steps where their certificate allows.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from anchorhead.errors import InputError, ToleranceError
from anchorhead.in_context.bounds import OutsideBoundsError
from anchorhead.in_context.gradient_descent import GradientDescent, gradient_descent
from anchorhead.in_context.losses import Loss, huber, logistic, poisson, squared
from anchorhead.in_context.newton import Newton, newton
from anchorhead.in_context.reference import slope

STEPS = 200
"""Steps of one network; it is run again from its last iterate."""
WIDENINGS = 14
MOST_LABELS = 64.0
"""Labels are bounded by this at least, so that heads made for one data set serve another."""


class Scaled(NamedTuple):
    """Data as the network gets it: columns of mean 0 and variance 1, a last column of ones if there is an intercept."""

    X: Tensor
    mean: np.ndarray
    scale: np.ndarray
    intercept: bool

    def penalties(self, value: float, power: int) -> list[float]:
        """A penalty on the coefficients of the original columns, by scaled column; none on the intercept."""
        return [value / float(s) ** power for s in self.scale] + [0.0] * self.intercept

    def original(self, w: Tensor) -> tuple[np.ndarray, float]:
        """Coefficients of the original columns, and the intercept."""
        coefficients = w[: len(self.scale)].numpy() / self.scale
        if not self.intercept:
            return coefficients, 0.0
        return coefficients, float(w[-1]) - float(coefficients @ self.mean)


def scaled(X: np.ndarray, intercept: bool) -> Scaled:
    """Centred only where an intercept takes up the means."""
    mean = X.mean(0) if intercept else np.zeros(X.shape[1])
    size = np.sqrt(((X - mean) ** 2).mean(0))
    size = np.where(size > 1e-12 * np.abs(X).max(0), size, 1.0)
    size = np.where(np.abs(size - 1) < 1e-9, 1.0, size)  # scaled already
    columns = (X - mean) / size
    if intercept:
        columns = np.column_stack([columns, np.ones(len(X))])
    return Scaled(torch.tensor(columns, dtype=torch.float64), mean, size, intercept)


class Solved(NamedTuple):
    """The last iterate, the network that made it, how many steps were run, and whether the gradient is small."""

    w: Tensor
    network: GradientDescent | Newton
    steps: int
    converged: bool


def _power(value: float) -> float:
    """The next power of two: few distinct bounds, so that heads are found again."""
    return 2.0 ** math.ceil(math.log2(max(value, 2.0**-20)))


def descend(loss: Loss, data: Tensor, y: Tensor, l2: list[float], l1: list[float], tol: float, most: int,
            start: Tensor | None = None, reach: float | None = None) -> Solved:  # fmt: skip
    """Runs networks of gradient descent with momentum until the gradient is below tol, relative to its first size."""
    n, d = data.shape
    eigenvalues = torch.linalg.eigvalsh(data.mT @ data / n)
    top = float(eigenvalues[-1]) * (1 + 1e-6) + 1e-12
    w = torch.zeros(d, dtype=torch.float64) if start is None else start
    first = _residual(loss, data, y, torch.zeros_like(w), l2, l1)
    sizes = {
        "x": _power(float(data.abs().max())),
        "y": _power(max(float(y.abs().max()), MOST_LABELS)),
        "curvature": top,
    }
    expected = 1 + max(float(w.abs().max()), float(y.abs().max()) if loss.name == "huber" else 0.0)
    limit = {"w": _power(4 * expected), "s": _power(max(reach or 4.0, 2 * expected))}
    steps, network = 0, None
    for _ in range(WIDENINGS):
        limit["s"] = min(limit["s"], _power(d * sizes["x"] * limit["w"]))
        network = _network(loss, data.shape, sizes | limit, l2, l1, float(eigenvalues[0]))
        try:
            while steps < most:
                w, steps = network(data, y, w0=w), steps + STEPS
                if _residual(loss, data, y, w, l2, l1) <= tol * max(first, 0.01):
                    return Solved(w, network, steps, True)
            return Solved(w, network, steps, False)
        except OutsideBoundsError:
            limit = {name: 2 * value for name, value in limit.items()}
    raise InputError("The coefficients grow without bound on these data; use a larger penalty.")


def _network(loss: Loss, shape: torch.Size, bounds: dict[str, float], l2: list[float], l1: list[float],
             least: float) -> GradientDescent:  # fmt: skip
    """The network with a learning rate of 1/L and the momentum that suits the least curvature."""
    curved = {"squared": 1.0, "huber": 1.0, "logistic": 0.25, "poisson": math.exp(min(bounds["s"], 50))}[loss.name]
    largest = curved * bounds["curvature"] + max(l2)
    share = {"squared": 1.0, "huber": 0.5}.get(loss.name, 0.0)  # of the examples whose loss is curved
    weakest = max(share * least + min(l2), min((v for v in l2 if v), default=0.0), 1e-5 * largest)
    momentum = (1 - math.sqrt(weakest / largest)) ** 2
    return gradient_descent(loss, features=shape[1], examples=shape[0], steps=STEPS, learning_rate=1 / largest,
                            l2=l2, l1=l1, momentum=momentum, bounds=bounds)  # fmt: skip


def _residual(loss: Loss, X: Tensor, y: Tensor, w: Tensor, l2: list[float], l1: list[float]) -> float:
    """The largest entry of the least subgradient of the objective."""
    gradient = (slope(loss, X @ w, y).unsqueeze(-2) @ X).squeeze(-2) / len(X) + torch.tensor(
        l2, dtype=torch.float64
    ) * w
    penalty = torch.tensor(l1, dtype=torch.float64)
    free = (gradient.abs() - penalty).clamp(min=0)
    return float(torch.where(w == 0, free, (gradient + penalty * w.sign()).abs()).max())


class _Linear(BaseEstimator):
    """What the models share: checking, scaling, and where the results go."""

    def _data(self, X: Any, y: Any, **checks: Any) -> tuple[Scaled, np.ndarray]:
        X, y = validate_data(self, X, y, dtype=np.float64, **checks)
        return scaled(X, self.fit_intercept), y

    def _keep(self, data: Scaled, solved: Solved, shift: float = 0.0, scale: float = 1.0) -> None:
        coefficients, intercept = data.original(solved.w)
        self.coef_, self.intercept_ = scale * coefficients, scale * intercept + shift
        self.n_iter_, self.network_, self.certificate_ = solved.steps, solved.network, solved.network.certificate
        if not solved.converged:
            warnings.warn(
                f"The gradient is not yet small after {solved.steps} steps; increase max_iter or the penalty.",
                ConvergenceWarning,
                stacklevel=3,
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

    def _squared(self, X: Any, y: Any, alpha: float, l1: float) -> Any:
        data, y = self._data(X, y, y_numeric=True)
        shift = float(y.mean()) if self.fit_intercept else 0.0
        size = float(np.sqrt(((y - shift) ** 2).mean())) or 1.0
        target = torch.tensor((y - shift) / size, dtype=torch.float64)
        l2, thin = data.penalties(alpha / len(y), 2), data.penalties(l1 / size, 1)
        solved = None if l1 else _by_newton(data, target, l2, self.tol)
        if solved is None:
            solved = descend(squared(), data.X, target, l2, thin, self.tol, self.max_iter)
        self._keep(data, solved, shift, size)
        return self


def _by_newton(data: Scaled, y: Tensor, l2: list[float], tol: float) -> Solved | None:
    """Newton's steps; None where they cannot be proved. The columns are centred, so the intercept is zero."""
    X = data.X[:, : len(data.scale)]
    most = max(l2)
    if most == 0 or len(X) < 2:
        return None
    top = float(torch.linalg.eigvalsh(X.mT @ X / len(X))[-1]) * (1 + 1e-6)
    bounds = {"x": _power(float(X.abs().max())), "y": _power(float(y.abs().max()) + 1e-3), "curvature": top + 1e-12}
    own = l2[: X.shape[1]]
    steps = math.ceil(math.log2((top + most) / min(own)) + 6)
    try:
        network = newton(features=X.shape[1], examples=len(X), steps=steps, l2=own, bounds=bounds)
    except ToleranceError:
        return None
    w = network(X, y)
    small = _residual(squared(), X, y, w, own, [0.0] * X.shape[1]) <= max(tol, 1e-12)
    whole = torch.cat([w, torch.zeros(int(data.intercept), dtype=torch.float64)])
    return Solved(whole, network, steps, True) if small else None


class LinearRegression(_Regressor):
    """Ordinary least squares."""

    def __init__(self, *, fit_intercept: bool = True, tol: float = 1e-10, max_iter: int = 20_000) -> None:
        self.fit_intercept, self.tol, self.max_iter = fit_intercept, tol, max_iter

    def fit(self, X: Any, y: Any) -> LinearRegression:
        found: LinearRegression = self._squared(X, y, 0.0, 0.0)
        return found


class Ridge(_Regressor):
    """Least squares with a penalty alpha·|w|²."""

    def __init__(
        self, alpha: float = 1.0, *, fit_intercept: bool = True, tol: float = 1e-10, max_iter: int = 20_000
    ) -> None:
        self.alpha, self.fit_intercept, self.tol, self.max_iter = alpha, fit_intercept, tol, max_iter

    def fit(self, X: Any, y: Any) -> Ridge:
        found: Ridge = self._squared(X, y, _penalty("alpha", self.alpha), 0.0)
        return found


class Lasso(_Regressor):
    """Mean squared error/2 with a penalty alpha·|w|_1."""

    def __init__(
        self, alpha: float = 1.0, *, fit_intercept: bool = True, tol: float = 1e-10, max_iter: int = 20_000
    ) -> None:
        self.alpha, self.fit_intercept, self.tol, self.max_iter = alpha, fit_intercept, tol, max_iter

    def fit(self, X: Any, y: Any) -> Lasso:
        found: Lasso = self._squared(X, y, 0.0, _penalty("alpha", self.alpha))
        return found


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
        self.outliers_ = np.abs(y - self._decision_of(X)) > self.scale_ * self.epsilon
        return self

    def _decision_of(self, X: Any) -> np.ndarray:
        found: np.ndarray = np.asarray(X, dtype=np.float64) @ self.coef_ + self.intercept_
        return found

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
