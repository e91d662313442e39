"""What the linear estimators share: checking data, telling how far a fit is, and what is proved of its coefficients."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from anchorhead.errors import InputError
from anchorhead.in_context.bounds import is_number
from anchorhead.in_context.coefficient_certificate import CoefficientCertificate
from anchorhead.in_context.fit import Solved
from anchorhead.in_context.minimiser_bound import distances
from anchorhead.in_context.minimiser_units import Problem
from anchorhead.in_context.network import no_file
from anchorhead.model.fused import unfused
from anchorhead.proof.certificate import Certificate
from anchorhead.warned import warn_caller

COARSE = 1e-3
"""The share of the largest coefficient that a proved bound may have without a warning."""
UNKNOWN = 0.1
"""The same for squares, whose coefficients are solved to more digits than are proved where columns are dependent."""
EDITED = "coef_ or intercept_ were changed after the fit, and what was proved is of those of the fit; fit again"
PENALTIES = ("decrease", "C"), ("increase", "alpha")


class DensifiedWarning(UserWarning):
    """Sparse data were written out."""


def dense(X: Any) -> Any:
    """Sparse data written out, with a warning; other data as they are."""
    if not sparse.issparse(X):
        return X
    warn_caller(
        f"The sparse X, {X.shape[0]:,} x {X.shape[1]:,}, was written out as a dense array: the prompt of a network "
        "holds every entry.",
        DensifiedWarning,
    )
    return X.toarray()


def read_weights(weights: Any, count: int) -> np.ndarray | None:
    """Weights of examples, not negative: one each, or one number for all."""
    if weights is None:
        return None
    found = np.asarray(weights, dtype=np.float64)
    if found.ndim == 0:
        found = np.full(count, found)
    if found.ndim != 1:
        raise InputError("Sample weights must be 1D array or scalar")
    if found.shape != (count,):
        raise InputError(f"sample_weight.shape == {found.shape}, expected {(count,)}!")
    if not np.isfinite(found).all() or (found < 0).any():
        raise InputError("Negative values in data passed to `sample_weight`, or values that are not finite.")
    if not found.any():
        raise InputError("Sample weights must contain at least one non-zero number.")
    return found


def read_penalty(name: str, value: Any) -> float:
    """A number that is not negative; C is positive, and may be infinite."""
    if name == "C":
        unbounded = isinstance(value, float | np.floating) and value == math.inf
        if not unbounded and not (is_number(value) and value > 0):
            raise InputError(f"C={value!r} must be a positive number; math.inf is no penalty.")
    elif not (is_number(value) and value >= 0):
        raise InputError(f"{name}={value!r} must be a finite number that is not negative.")
    return float(value)


def penalty_share(name: str, value: Any, over: float, times: float = 1.0) -> float:
    """The penalty, alpha or 1/C, in the units of a fit: times a factor and over another."""
    number = read_penalty(name, value)
    found = (1 / number if name == "C" else number) * (times / over)
    if not math.isfinite(found):
        size, advice = ("small", "increase") if name == "C" else ("large", "decrease")
        raise InputError(
            f"{name}={value!r} is so {size} that the penalty is beyond the largest float in the units of these data; "
            f"{advice} it."
        )
    return found


def read_penalties(value: Any, targets: int) -> list[float]:
    """alpha: one number, or one for each target."""
    if np.ndim(value) == 0:
        return [read_penalty("alpha", value)] * targets
    if np.shape(value) != (targets,):
        raise InputError(
            f"alpha has the shape {np.shape(value)}, and y has {targets} target{'s' * (targets > 1)}; give one number, "
            "or one for each target."
        )
    return [read_penalty("alpha", one) for one in value]


def check_options(options: Mapping[str, Any]) -> None:
    """Of those of fit_intercept, tol and max_iter that an estimator has."""
    switch, tol, most = options.get("fit_intercept", True), options.get("tol", 0.0), options.get("max_iter", 1)
    if not isinstance(switch, bool | np.bool_):
        raise InputError(f"fit_intercept={switch!r} must be True or False.")
    if not (is_number(tol) and tol >= 0):
        raise InputError(f"tol={tol!r} must be a finite number that is not negative.")
    if not isinstance(most, int | np.integer) or isinstance(most, bool) or most < 1:
        raise InputError(f"max_iter={most!r} must be a whole number from 1.")


class Linear(BaseEstimator):
    """A linear map that a network learned: coef_ and intercept_.

    network_: the last network that ran, on prompt_, the tensors that it was given: network_(*prompt_) runs it again,
    and replay() takes its result to the units of the data. certificate_: how far coef_ and intercept_ are from the
    minimiser's, proved, in the units of the data, `outputs` for every coefficient and, last, the intercept if one is
    fitted, of several classes or targets one after another; or None, and then certificate_missing_ says why. n_iter_:
    steps of networks.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _read(self, X: Any, y: Any, sample_weight: Any, **checks: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        """The data in float64; weights are None where all count alike."""
        self.__dict__.pop("_unproved", None)
        check_options(self.get_params())
        X, y = validate_data(self, X, y, dtype=np.float64, accept_sparse=True, **checks)
        X = dense(X)
        return X, y, read_weights(sample_weight, len(X))

    def __sklearn_is_fitted__(self) -> bool:
        """Not after a fit that was refused."""
        return "_unproved" in vars(self)

    def _end(self, solved: Solved, spent: bool | None = None, endless: str = "") -> None:
        """What a fit leaves, a warning where it did not converge, and a refusal of what floats do not hold.

        spent: whether max_iter ended it; else the number of steps says so. endless: why no fit converges.
        """
        self.n_iter_, self._run = solved.steps, solved.run
        self.network_, self.prompt_ = solved.run.network, solved.run.prompt
        if not (np.isfinite(self.coef_).all() and np.isfinite(self.intercept_).all()):
            raise InputError(
                "The coefficients are beyond the largest float in the units of these data; rescale the columns or y."
            )
        self._converged, self._blurred, known = solved.converged and not endless, solved.blurred, self.get_params()
        spent = solved.steps >= known.get("max_iter", math.inf) if spent is None else spent
        self._spent = spent and not solved.converged and not endless
        if endless:
            warn_caller(f"No fit converges: {endless}.", ConvergenceWarning)
        elif not solved.converged:
            stuck = "" if spent or "max_iter" not in known else ", and rounding in float64 hides any way further down"
            advice = self._advice(spent) or ["the columns are nearly dependent: leave some out, or use Ridge"]
            warn_caller(
                f"The coefficients are not yet at the minimum after {solved.steps} step{'s' * (solved.steps > 1)}"
                f"{stuck}; {' or '.join(advice)}.",
                ConvergenceWarning,
            )
        if not solved.shortest:
            warn_caller(
                "The columns are linearly dependent, and rounding hides which of the coefficients that minimise the "
                "objective are the shortest: those found minimise it, and others are shorter. Leave a column out, or "
                "divide the columns by their deviations.",
                ConvergenceWarning,
            )

    def _advice(self, spent: bool) -> list[str]:
        """What brings coefficients nearer to the minimum."""
        known = self.get_params()
        return ["increase max_iter"] * spent + [f"{how} {name}" for how, name in PENALTIES if name in known]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Refused: a fit has no file with a proof."""
        raise no_file(type(self).__name__)

    def replay(self) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercept from running network_ on prompt_ again, in the units of the data.

        Those of the last run: of several targets with one fit each they are the last one's.
        """
        check_is_fitted(self)
        with unfused():
            return self._run.again()

    @property
    def certificate_(self) -> Certificate | None:
        """What is proved of coef_ and intercept_; None where they are not those of the fit any more."""
        check_is_fitted(self)
        return None if self._edited() else self._proof

    @property
    def certificate_missing_(self) -> str:
        """Why there is no certificate_; empty where there is one."""
        check_is_fitted(self)
        return EDITED if self._edited() else self._unproved

    def _edited(self) -> bool:
        now = self.coef_, self.intercept_
        return not all(np.array_equal(*pair) for pair in zip(now, self._proved_of, strict=True))

    def _certify(self, problem: Problem, said: str = "coef_ and intercept_ of the minimiser",
                 penalties: Sequence[float] = (), missing: str = "") -> None:  # fmt: skip
        """certificate_ or certificate_missing_, from the objective; penalties: l2 of each target, where they differ;
        missing: why there is nothing to be certified."""
        middle = np.broadcast_to(self.intercept_, len(np.atleast_2d(self.coef_)))
        rows: list[Any] = [distances(problem, self.coef_, middle)] if not penalties else [
            distances(replace(problem, y=y, l2=l2), w, c)
            for y, l2, w, c in zip(problem.y, penalties, self.coef_, middle, strict=True)]  # fmt: skip
        self._proof: Certificate | None = None
        self._proved_of = np.array(self.coef_), np.array(self.intercept_)
        self._unproved: str = missing or next((row for row in rows if isinstance(row, str)), "")
        if self._unproved and self._spent:  # of coefficients elsewhere, another reason would say nothing
            steps = f"{self.n_iter_} step{'s' * (self.n_iter_ > 1)}"
            self._unproved = f"the fit has not converged after {steps}: {' or '.join(self._advice(True))}"
        if not self._unproved:
            bounds = np.stack(rows) if self.fit_intercept else np.stack(rows)[..., :-1]
            each = "classes" if problem.loss == "classes" else "targets"
            self._proof = CoefficientCertificate.of(problem.X, bounds, bool(self.fit_intercept), said, each)
            self._warn_if_coarse(problem, np.stack(rows)[..., :-1])
        elif self._converged and self._blurred:
            warn_caller(
                f"Columns are nearly dependent: of the coefficients nothing is proved, and rounding of X may move them "
                f"by about {self._blurred:.0e} of the largest, in units of the columns; "
                f"{' or '.join([*self._advice(False), 'leave a column out'])}.",
                ConvergenceWarning,
            )

    def _warn_if_coarse(self, problem: Problem, bounds: np.ndarray) -> None:
        """A warning where coefficients, in units of their columns' ranges, are known to few digits."""
        if not self._converged:
            return
        ranges = problem.X.max(0) / 2 - problem.X.min(0) / 2
        size, off = (float(np.abs(values * ranges).max(initial=0.0)) for values in (self.coef_, bounds))
        share = UNKNOWN if problem.loss == "squared" else COARSE
        if size and off > share * max(size, COARSE * self._unit(problem)):
            warn_caller(
                f"The coefficients are proved to be within {off / size:.1g} of the largest only, "
                "in units of the columns' ranges, as where columns are nearly dependent; "
                f"{' or '.join([*self._advice(False), 'leave a column out'])}.",
                ConvergenceWarning,
            )

    def _unit(self, problem: Problem) -> float:
        """Of predictions: one, or the labels' range where they have units."""
        own = problem.loss in ("huber", "squared")
        return float(problem.y.max() / 2 - problem.y.min() / 2) if own else 1.0

    def _decision(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = dense(validate_data(self, X, reset=False, dtype=np.float64, accept_sparse=True))
        found: np.ndarray = X @ np.asarray(self.coef_).T + self.intercept_
        return found


class LinearRegressor(RegressorMixin, Linear):
    """Predicts the linear map."""

    def predict(self, X: Any) -> np.ndarray:
        """The linear map that was learned."""
        return self._decision(X)


def ones_like(weights: np.ndarray | None, count: int) -> np.ndarray:
    """The weights, ones where there are none."""
    return np.ones(count) if weights is None else weights


def counting(X: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, Any]:
    """Without the examples of weight zero."""
    if weights is None or weights.all():
        return X, y, weights
    kept = weights > 0
    return X[kept], y[kept], weights[kept]
