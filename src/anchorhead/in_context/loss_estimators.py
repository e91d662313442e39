"""scikit-learn's linear models of other losses, fitted by Newton's steps inside attention (`fit_smooth.py`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from anchorhead.digits import Up
from anchorhead.errors import InputError
from anchorhead.in_context.bounds import is_number
from anchorhead.in_context.fit import Report, Scaled, Solved, largest, spanned
from anchorhead.in_context.fit_smooth import fit_classes, fit_smooth
from anchorhead.in_context.linear_models import Linear, LinearRegressor, counting, ones_like, penalty_share
from anchorhead.in_context.losses import huber, logistic, poisson
from anchorhead.in_context.minimiser_sums import gamma
from anchorhead.in_context.minimiser_units import FLOOR, Problem, penalty_of
from anchorhead.model.fused import unfused
from anchorhead.progress import Progress, telling

SEPARATED = (
    "without a penalty the minimum lies at infinity, since the classes can be separated perfectly, as the coefficients "
    "of this fit do, and no number of steps gets there; decrease C from infinity to a number, such as 1.0"
)
SMALLEST = 28.0
"""The least scale, in powers of e below the typical label; there predictions are rounded by a thousandth of it."""
FURTHEST = 2.0**10
"""Labels beyond this, times the typical one, are put there for a start: as outliers they pull alike from anywhere."""
MOST_SCALES = 60
LONGEST = 1.0
"""Of steps towards smaller scales, where some examples become outliers by them."""
CLOSE = 1e-11
ROUNDED, VANISHING = 2.0**-40, 2.0**-8
"""What is left of a label that is fitted perfectly, in units of the largest prediction or typical label, or the scale.
"""
SOLVED = 1e-6
"""How far, relatively, a squared scale may be from its condition."""


def _intercept(data: Scaled, w: Tensor, coefficients: np.ndarray, fitted: bool) -> Any:
    """Of the original columns, (...)."""
    last = w[..., -1].numpy() if fitted else np.zeros(w.shape[:-1])
    return last - coefficients @ data.mean


class LogisticRegression(ClassifierMixin, Linear):
    """Mean logistic loss with a penalty |w|²/(2 C n); of more than two classes the multinomial one.

    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> ah.in_context.LogisticRegression().fit(X, y).predict([[0.5], [2.5]]).tolist()
    [0, 1]
    """

    def __init__(self, C: float = 1.0, *, fit_intercept: bool = True, tol: float = 1e-9, max_iter: int = 200,
                 progress: bool | Progress = True) -> None:  # fmt: skip
        self.C, self.fit_intercept, self.tol = C, fit_intercept, tol
        self.max_iter, self.progress = max_iter, progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LogisticRegression:
        """Fits the classes y, (n,), by networks; sample_weight is one number for each example."""
        X, y, weights = self._read(X, y, sample_weight)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError("The labels have one class, and at least two are needed.")
        X, labels, weights = counting(X, labels, weights)
        own = ones_like(weights, len(X))
        share = penalty_share("C", self.C, float(own.sum()))
        data = spanned(X, weights, centre=self.fit_intercept).eased(share)
        l2 = data.penalties(share, 2)
        with telling(f"fitting {type(self).__name__}", self.progress) as report, unfused():
            solved = self._solved(data, torch.tensor(labels), l2, report)
        w = np.atleast_2d(solved.w)
        self.coef_: np.ndarray = data.coefficients(torch.tensor(w))
        self.intercept_: np.ndarray = _intercept(data, torch.tensor(w), self.coef_, self.fit_intercept)
        endless = SEPARATED if math.isinf(self.C) and self._separates(X, labels) else ""
        self._end(data.told(solved), endless=endless)
        if len(self.classes_) > 2:
            problem = Problem(X, labels, own, self.fit_intercept, "classes", 1 / float(self.C))
            self._certify(problem, "coef_ and intercept_ of the minimiser whose rows sum to zero", missing=endless)
        else:
            labels = labels[None].astype(float)
            problem = Problem(X, labels, own, self.fit_intercept, "logistic", 1 / float(self.C))
            self._certify(problem, missing=endless)
        return self

    def _separates(self, X: np.ndarray, labels: np.ndarray) -> bool:
        """Whether every example's own class is ahead of the others by more than all roundings of a prediction: then
        multiples of the coefficients bring the loss as near to zero as one likes, which it never is."""
        with np.errstate(over="ignore", invalid="ignore"):
            scores = X @ self.coef_.T + self.intercept_
            rounding = gamma(X.shape[1] + 6) * (np.abs(X) @ np.abs(self.coef_).T + np.abs(self.intercept_)) + FLOOR
        if len(self.classes_) == 2:
            return bool((np.where(labels == 1, scores[:, 0], -scores[:, 0]) > rounding[:, 0]).all())
        own, every = labels[:, None] == np.arange(len(self.classes_)), rounding.max(1)
        ahead = scores[own] - np.where(own, -np.inf, scores).max(1)
        return bool((ahead > 4 * every).all())

    def _solved(self, data: Scaled, labels: Tensor, l2: list[float], report: Report) -> Solved:
        if len(self.classes_) > 2:
            return fit_classes(data, labels, len(self.classes_), l2, self.tol, self.max_iter, report)
        return fit_smooth(logistic(), lambda s, y: torch.logaddexp(s, 0 * s) - y * s, data, labels.double(), l2,
                          self.tol, self.max_iter, report)  # fmt: skip

    def decision_function(self, X: Any) -> np.ndarray:
        """w·x + intercept: of two classes one number, positive for the second; else one for each class."""
        found = self._decision(X)
        return found[:, 0] if len(self.classes_) == 2 else found

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes: of two by the two-key head for the sigmoid, else by softmax over them."""
        from anchorhead.compiler.compile import compile

        s = torch.tensor(self.decision_function(X), dtype=torch.float64)
        if len(self.classes_) > 2:
            found: np.ndarray = s.softmax(-1).numpy()
            return found
        second = compile("sigmoid(x)", tol=1e-14)(s).numpy()
        return np.column_stack([1 - second, second])

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of the probabilities, plainly of w·x + intercept: finite where a probability rounds to zero."""
        s = torch.tensor(self.decision_function(X), dtype=torch.float64)
        scores = s if s.ndim == 2 else torch.stack([torch.zeros_like(s), s], -1)
        found: np.ndarray = scores.log_softmax(-1).numpy()
        return found

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class."""
        s = self.decision_function(X)
        found: np.ndarray = self.classes_[(s > 0).astype(int) if s.ndim == 1 else s.argmax(1)]
        return found


class PoissonRegressor(LinearRegressor):
    """Counts with a logarithmic link: mean exp(s) - y s with a penalty alpha·|w|²/2.

    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [1, 2, 4, 9]
    >>> ah.in_context.PoissonRegressor(alpha=0.1).fit(X, y).predict([[1.0]]).shape
    (1,)
    """

    def __init__(self, alpha: float = 1.0, *, fit_intercept: bool = True, tol: float = 1e-9, max_iter: int = 200,
                 progress: bool | Progress = True) -> None:  # fmt: skip
        self.alpha, self.fit_intercept, self.tol = alpha, fit_intercept, tol
        self.max_iter, self.progress = max_iter, progress

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> PoissonRegressor:
        """Fits the counts y, (n,), by networks; sample_weight is one number for each example."""
        X, y, weights = self._read(X, y, sample_weight, y_numeric=True)
        X, y, weights = counting(X, y.astype(np.float64), weights)
        if (y < 0).any():
            raise InputError("Some labels are negative, which a Poisson distribution does not allow.")
        if not y.any():
            raise InputError("All labels are zero: the minimum is at an intercept of minus infinity. Give counts.")
        own = ones_like(weights, len(X))
        size = float(np.average(y, weights=weights)) if self.fit_intercept else 1.0  # exp(s)/size is exp(s - log size)
        share = penalty_share("alpha", self.alpha, size)
        data = spanned(X, weights, centre=self.fit_intercept).eased(share)
        with telling(f"fitting {type(self).__name__}", self.progress) as report, unfused():
            solved = fit_smooth(poisson(), lambda s, y: s.exp() - y * s, data, torch.tensor(y / size),
                                data.penalties(share, 2), self.tol, self.max_iter, report)  # fmt: skip
        self.coef_ = data.coefficients(solved.w)
        self.intercept_ = float(_intercept(data, solved.w, self.coef_, self.fit_intercept)) + math.log(size)
        self._end(data.told(solved, math.log(size)))
        self._certify(Problem(X, y, own, self.fit_intercept, "poisson", penalty_of(self.alpha, float(own.sum()))))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The expected count, exp of the linear map."""
        return np.exp(self._decision(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """D², the share of the deviance that is explained, as scikit-learn's."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))


class HuberRegressor(LinearRegressor):
    """Least squares that is linear beyond epsilon times the scale, which is estimated along: scale_.

    For a given scale the network minimises Huber's loss of y/scale; the scale solves
    scale² = sum of squared inlier residuals / (n - epsilon² · outliers), the condition for scikit-learn's objective.
    certificate_ is for coef_ and intercept_ at that scale_; there is none where no scale solves it, as where labels are
    fitted perfectly, whatever the scale. max_iter is for the steps at one scale, n_iter_ counts those at all.

    >>> X, y = [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]], [1.0, 3.1, 4.9, 7.0, 9.1, 40.0]
    >>> round(float(ah.in_context.HuberRegressor().fit(X, y).coef_[0]), 1)
    2.1
    """

    def __init__(self, epsilon: float = 1.35, alpha: float = 0.0001, *, fit_intercept: bool = True, tol: float = 1e-9,
                 max_iter: int = 200, progress: bool | Progress = True) -> None:  # fmt: skip
        self.epsilon, self.alpha, self.fit_intercept = epsilon, alpha, fit_intercept
        self.tol, self.max_iter, self.progress = tol, max_iter, progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> HuberRegressor:
        """Fits y, (n,), by networks; sample_weight is one number for each example."""
        X, y, weights = self._read(X, y, sample_weight, y_numeric=True)
        if not (is_number(self.epsilon) and self.epsilon >= 1):
            raise InputError(f"epsilon={self.epsilon!r} must be a finite number, at least 1.")
        whole, labels = X, y.astype(np.float64)
        X, y, weights = counting(X, labels, weights)
        own = ones_like(weights, len(X))
        centre = _median(y, own) if self.fit_intercept else 0.0
        typical = _median(np.abs(y - centre), own) or float(np.average(np.abs(y - centre), weights=own)) or 1.0
        share = penalty_share("alpha", self.alpha, float(own.sum()), typical)
        data = spanned(X, weights, centre=self.fit_intercept).eased(share)
        with telling(f"fitting {type(self).__name__}", self.progress) as report, unfused():
            search = _ScaleSearch(self, data, y - centre, own, typical, report)
            self.scale_ = search.run()
        solved, spent = search.solved, search.spent
        self.coef_ = self.scale_ * data.coefficients(solved.w)
        last = float(solved.w[-1]) * self.scale_ if self.fit_intercept else 0.0
        self.intercept_ = centre + last - float(self.coef_ @ data.mean)
        self._end(data.told(solved, centre, self.scale_)._replace(steps=search.steps), spent)
        corner = float(self.epsilon) * self.scale_
        penalty = penalty_of(self.alpha, self.scale_)
        problem = Problem(X, y, own, self.fit_intercept, "huber", penalty, corner=corner)
        self._certify(problem, "coef_ and intercept_ of the minimiser at this scale_", missing=search.missing(solved))
        self.outliers_ = np.abs(labels - (whole @ self.coef_ + self.intercept_)) > corner
        return self


class _ScaleSearch:
    """The scale of HuberRegressor: a root, between scales too small and too large.

    An outlier pulls alike from wherever it is. So labels further than `far` are put there, and lose no digits of the
    others; should predictions come near, they are put further out. typical: the size of a label that is no outlier.
    """

    def __init__(self, model: HuberRegressor, data: Scaled, y: np.ndarray, weights: np.ndarray, typical: float,
                 report: Report) -> None:  # fmt: skip
        self.model, self.data, self.y, self.weights, self.report = model, data, y, weights, report
        self.scale, self.typical, self.far = 1.0, typical, FURTHEST * typical
        self.last: Solved | None = None
        self.steps, self.off, self.room = 0, math.inf, LONGEST

    @property
    def solved(self) -> Solved:
        """The fit at the last scale; it has converged where that solves its condition, or where none does."""
        last = self.last if self.last is not None else self._fit(self.scale)
        found = (last.converged and abs(self.off) <= SOLVED) or self._perfect(last.w)
        return last._replace(converged=found)

    def missing(self, solved: Solved) -> str:
        """Why the last scale is not one that solves its condition, if so."""
        if not solved.converged:
            return "the fit has not converged"
        if abs(self.off) <= SOLVED:
            return ""
        return (
            f"no scale down to {Up(self.scale):.1g} solves the condition for it: labels are fitted perfectly, whatever "
            "the scale, all or but for outliers, and the minimum is nearer to scale zero; increase alpha, or use fewer "
            "columns"
        )

    def _perfect(self, w: Tensor) -> bool:
        """Whether rounding is all that is left of the labels which are no outliers."""
        found = self.data.X @ w
        left, size = (found - self._target(self.scale)).abs(), max(largest(found), self.typical / self.scale)
        fitted = (left <= max(ROUNDED * size, VANISHING)) | (left > self.model.epsilon)
        return self.off < 0 and bool(fitted.all())

    def excess(self, log_scale: float) -> float:
        """How far the squared scale is from its condition, relatively, for the best fit at this scale."""
        scale, most = math.exp(log_scale), self.model.epsilon
        self.last, self.scale = self._fit(scale), scale
        self.steps += self.last.steps
        r = (self.data.X @ self.last.w - self._target(scale)).abs().numpy()
        self.room = max(math.log(most / max(float(r.max()), 1e-300)), LONGEST)
        self.off = float(self.weights @ r.clip(max=most) ** 2) / float(self.weights.sum()) - 1
        return self.off

    @property
    def spent(self) -> bool:
        """Whether steps are used up, and the last fit was not one."""
        return self.steps >= self.model.max_iter and self.last is not None and not self.last.converged

    def _target(self, scale: float) -> Tensor:
        return torch.tensor(self.y.clip(-self.far, self.far) / scale)

    def _fit(self, scale: float) -> Solved:
        """The best fit at a scale, from the last one."""
        model, most = self.model, float(np.abs(self.y).max())
        l2 = self.data.penalties(penalty_share("alpha", model.alpha, float(self.weights.sum()), scale), 2)
        start, steps = None if self.last is None else self.last.w * (self.scale / scale), 0
        while True:
            found = fit_smooth(huber(model.epsilon), lambda s, y: _huber_value(s - y, model.epsilon), self.data,
                               self._target(scale), l2, model.tol, model.max_iter, self.report, start)  # fmt: skip
            start, steps = found.w, steps + found.steps
            if self.far >= most or (largest(self.data.X @ found.w) + model.epsilon) * scale < self.far:
                return found._replace(steps=steps)
            self.far *= FURTHEST

    def run(self) -> float:
        """From above: scale² times the excess and one is the scale that this fit asks for, from then on by secants,
        within what is known to be too small and too large. A step down is as long as all examples stay inliers by it,
        or `LONGEST`. A perfect fit has no root, and keeps a small scale."""
        start = math.log(self.typical)
        here, off, up = start + 0.5, self.excess(start + 0.5), 1.0
        while off > 0 and not self.spent:
            here, off, up = here + up, self.excess(here + up), 2 * up
        low, high, before = start - SMALLEST, here, (here, off)
        step = _asked(off)
        for _ in range(0 if self.spent else MOST_SCALES):
            ahead = here + max(step, -self.room)
            if not low < ahead < high:
                ahead = (low + high) / 2 if low > start - SMALLEST else max(min(ahead, high - self.room), low)
            before, here = (here, off), ahead
            try:
                off = self.excess(here)
            except InputError:  # of a perfect fit: no scale is too small, and this one holds no inlier
                return math.exp(before[0])
            low, high = (here, high) if off > 0 else (low, here)
            if abs(here - before[0]) <= CLOSE or off == 0 or here <= start - SMALLEST or self.spent:
                break
            flat = off == before[1]
            step = _asked(off) if flat else off * (here - before[0]) / (before[1] - off)
        return math.exp(here)


def _median(values: np.ndarray, weights: np.ndarray) -> float:
    """A value with half of the weight on either side."""
    order = np.argsort(values)
    above = np.cumsum(weights[order]) >= weights.sum() / 2
    return float(values[order][above.argmax()])


def _asked(off: float) -> float:
    """The step in log scale that an excess asks for; a perfect fit's is long."""
    return math.log(max(1 + off, 1e-4)) / 2


def _huber_value(r: Tensor, epsilon: float) -> Tensor:
    size = r.abs()
    return torch.where(size <= epsilon, size * size / 2, epsilon * size - epsilon * epsilon / 2)
