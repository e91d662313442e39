"""Counts fitted by attention, where predictions lie far apart: exp is held where it is largest."""

import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah

pytest.importorskip("sklearn")
from sklearn import linear_model
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.exceptions import ConvergenceWarning

ic = ah.in_context
pytestmark = pytest.mark.heavy


def fitted(X, y, alpha, intercept):
    """Without a warning, and the network of the fit says the same when it is run again."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = ic.PoissonRegressor(alpha, fit_intercept=intercept).fit(X, y)
    coef, last = model.replay()
    assert np.allclose(coef, model.coef_, rtol=1e-6, atol=1e-9 * np.abs(model.coef_).max())
    assert np.allclose(last, model.intercept_, rtol=1e-6, atol=1e-9)
    return model


def left(X, y, alpha, model):
    """How far Newton's next steps go in twice the digits, in units of the columns, relative to the coefficients."""
    X = mpmath.matrix(np.column_stack([X, np.ones(len(X))]) if model.fit_intercept else X)
    w = mpmath.matrix([*model.coef_, model.intercept_][: X.cols])
    l2 = mpmath.diag([alpha] * len(model.coef_) + [0] * model.fit_intercept)
    moved = mpmath.zeros(X.cols, 1)
    for _ in range(3):
        mean = [mpmath.exp(s) for s in X * w]
        weighted = mpmath.matrix([[mean[i] * X[i, j] / X.rows for j in range(X.cols)] for i in range(X.rows)])
        slope = X.T * (mpmath.matrix(mean) - mpmath.matrix(list(y))) / X.rows + l2 * w
        step = mpmath.lu_solve(X.T * weighted + l2, slope)
        w, moved = w - step, moved + step
    units = [mpmath.sqrt(sum(X[i, j] ** 2 for i in range(X.rows))) for j in range(X.cols)]
    most, whole = (max(abs(v * u) for v, u in zip(part, units, strict=True)) for part in (moved, w))
    return float(most / whole)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("alpha", [1.0, 1e-3, 0.0])
@pytest.mark.parametrize("load", [load_breast_cancer, load_diabetes, load_wine])
def test_unscaled_data_have_the_coefficients_of_a_direct_solver(load, alpha, intercept):
    X, y = load(return_X_y=True)
    theirs = linear_model.PoissonRegressor(alpha=alpha, fit_intercept=intercept, solver="newton-cholesky", tol=1e-12,
                                           max_iter=1000).fit(X, y)  # fmt: skip
    units = X.std(0) if intercept else np.sqrt((X**2).mean(0))
    apart = np.abs((fitted(X, y, alpha, intercept).coef_ - theirs.coef_) * units)
    assert apart.max() < 1e-9 * np.abs(theirs.coef_ * units).max()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.floats(1, 12), st.booleans())
def test_predictions_far_apart_cost_no_digits(seed, spread, intercept):
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((30, 3))
    y = draw.poisson(np.exp(np.minimum(spread * X[:, 0], 8.0))) + (np.arange(30) == 0)
    X = X * 10.0 ** draw.uniform(-3, 3, 3)
    with mpmath.workdps(40):
        assert left(X, y, 1e-3, fitted(X, y, 1e-3, intercept)) < 1e-9
