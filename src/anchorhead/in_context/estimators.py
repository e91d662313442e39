"""scikit-learn's least squares, fitted by attention: fit gives the data to an in-context network as its prompt.

The problem is scikit-learn's, in its own coefficients: columns are scaled inside, and penalties with them (`fit.py`).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from anchorhead.in_context.fit import Scaled, centred_labels, scaled
from anchorhead.in_context.fit_lasso import LARGE, fit_lasso
from anchorhead.in_context.fit_squares import fit_squares
from anchorhead.in_context.linear_models import LinearRegressor, counting, ones_like, read_penalties, read_penalty
from anchorhead.in_context.minimiser_sums import Dependent
from anchorhead.in_context.minimiser_units import Problem, penalty_of
from anchorhead.model.fused import unfused
from anchorhead.progress import Progress, telling
from anchorhead.warned import warn_caller


class _Squares(LinearRegressor):
    """Squares of one target or several. _rows: whether the coefficients of one column of labels are a row, as
    scikit-learn's are for LinearRegression, or a vector."""

    _rows = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _fit(self, X: Any, y: Any, alpha: Any, sample_weight: Any) -> Self:
        X, y, weights = self._read(X, y, sample_weight, y_numeric=True, multi_output=True)
        X, y, weights = counting(X, y, weights)
        targets = np.atleast_2d(y.T).astype(np.float64)
        alphas = read_penalties(alpha, len(targets))
        with telling(f"fitting {type(self).__name__}", self.progress) as report, unfused():
            if len(set(alphas)) == 1:
                found = [fit_squares(X, targets, weights, alphas[0], self.fit_intercept, self.tol, report)]
            else:
                found = [fit_squares(X, one[None], weights, a, self.fit_intercept, self.tol, report)
                         for one, a in zip(targets, alphas, strict=True)]  # fmt: skip
        coefficients, intercepts = (np.concatenate([part[i] for part in found]) for i in (0, 1))
        many = y.ndim == 2 and (self._rows or len(targets) > 1)
        self.coef_: np.ndarray = coefficients if many else coefficients[0]
        self.intercept_: Any = intercepts if y.ndim == 2 and self.fit_intercept else float(intercepts[0])
        self._end(found[-1][2]._replace(converged=all(part[2].converged for part in found),
                                        shortest=all(part[2].shortest for part in found)))  # fmt: skip
        labels, weights = targets if many else targets[0], ones_like(weights, len(X))
        problem = Problem(X, labels, weights, self.fit_intercept, l2=alphas[0])
        self._certify(problem, penalties=alphas if len(set(alphas)) > 1 else ())
        return self


class LinearRegression(_Squares):
    """Ordinary least squares; the shortest coefficients where columns are linearly dependent.

    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 7.0]
    >>> model = ah.in_context.LinearRegression().fit(X, y)
    >>> [round(float(w), 4) for w in (*model.coef_, model.intercept_)]
    [2.0, 1.0]
    """

    _rows = True

    def __init__(self, *, fit_intercept: bool = True, tol: float = 1e-10, progress: bool | Progress = True) -> None:
        self.fit_intercept, self.tol, self.progress = fit_intercept, tol, progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearRegression:
        """Fits y, (n,) or (n, targets), by the network; sample_weight is one number for each example."""
        return self._fit(X, y, 0.0, sample_weight)


class Ridge(_Squares):
    """Least squares with a penalty alpha·|w|²; alpha may be one number for each target.

    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 7.0]
    >>> round(float(ah.in_context.Ridge(alpha=1.0).fit(X, y).coef_[0]), 4)
    1.6667
    """

    def __init__(self, alpha: Any = 1.0, *, fit_intercept: bool = True, tol: float = 1e-10,
                 progress: bool | Progress = True) -> None:  # fmt: skip
        self.alpha, self.fit_intercept, self.tol, self.progress = alpha, fit_intercept, tol, progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Ridge:
        """Fits y, (n,) or (n, targets), by the network; sample_weight is one number for each example."""
        return self._fit(X, y, self.alpha, sample_weight)


class Lasso(LinearRegressor):
    """Mean squared error/2 with a penalty alpha·|w|_1; of several targets each by itself.

    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 7.0]
    >>> round(float(ah.in_context.Lasso(alpha=0.5).fit(X, y).coef_[0]), 4)
    1.6
    """

    def __init__(self, alpha: float = 1.0, *, fit_intercept: bool = True, tol: float = 1e-10, max_iter: int = 20_000,
                 progress: bool | Progress = True) -> None:  # fmt: skip
        self.alpha, self.fit_intercept, self.tol = alpha, fit_intercept, tol
        self.max_iter, self.progress = max_iter, progress

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Lasso:
        """Fits y, (n,) or (n, targets), by the network; sample_weight is one number for each example."""
        X, y, weights = self._read(X, y, sample_weight, y_numeric=True, multi_output=True)
        X, y, weights = counting(X, y, weights)
        alpha = read_penalty("alpha", self.alpha)
        data, targets = scaled(X, weights, centre=self.fit_intercept), np.atleast_2d(y.T).astype(np.float64)
        labels = centred_labels(targets, weights, self.fit_intercept)
        with telling(f"fitting {type(self).__name__}", self.progress) as report, unfused():
            found = [self._one(data, one, alpha, report) for one in zip(*labels, strict=True)]
        many = len(targets) > 1  # as scikit-learn has it, whose coefficients of one column of labels are a vector
        self.coef_ = np.array([part[0] for part in found]) if many else found[0][0]
        alone = y.ndim == 1 or not self.fit_intercept
        self.intercept_ = found[0][1] if alone else np.array([part[1] for part in found])
        spent = any(part[2].steps >= self.max_iter and not part[2].converged for part in found)
        self._end(found[-1][2]._replace(converged=all(part[2].converged for part in found)), spent)
        own = ones_like(weights, len(X))
        l1 = penalty_of(alpha, float(own.sum()))
        self._certify(Problem(X, targets if many else targets[0], own, self.fit_intercept, l1=l1))
        if self._converged and isinstance(self._unproved, Dependent):
            warn_caller(
                f"Of the coefficients nothing is proved: {self._unproved}. Which of such columns have coefficients "
                f"rounding may have decided; {' or '.join([*self._advice(False), 'leave a column out'])}.",
                ConvergenceWarning,
            )
        return self

    def _one(self, data: Scaled, labels: Any, alpha: float, report: Any) -> tuple[Any, float, Any]:
        """A target's coefficients and intercept, and how they were found."""
        y, middle, size = labels
        penalties = [min(l1, LARGE) for l1 in data.penalties(alpha / float(size), 1)]
        solved = fit_lasso(data, torch.tensor(y), penalties, self.tol, self.max_iter, report)
        coefficients = data.coefficients(solved.w, size)
        return coefficients, float(middle - coefficients @ data.mean), data.told(solved, middle, size)
