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


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(-100, -8), st.sampled_from(["counts", "two", "three"]))
def test_columns_in_tiny_units_have_the_coefficients_that_the_slope_at_zero_says(seed, power, kind):
    draw = np.random.default_rng(seed)
    X, y = 10.0**power * draw.standard_normal((12, 3)), draw.permutation([0, 1, 2, 3] * 3)
    y = y if kind == "counts" else y > 1 if kind == "two" else y % 3
    labels = np.atleast_2d(y).astype(float) if kind != "three" else np.eye(3)[y].T
    wanted = (labels - labels.mean(1, keepdims=True)) @ X
    model = ic.PoissonRegressor(1 / 12) if kind == "counts" else ic.LogisticRegression()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y)
    for found in (model.coef_, model.replay()[0]):
        assert np.abs(found - wanted).max() <= 1e-9 * np.abs(wanted).max()
