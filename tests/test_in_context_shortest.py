"""Least squares on dependent columns: the shortest coefficients in the units of the data, against singular values."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah

pytest.importorskip("sklearn")
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures

ic = ah.in_context


def apart(X, y):
    """Relative differences of the coefficients and of the predictions from numpy's, and the fit runs again."""
    A, labels = X - X.mean(0), y - y.mean(0)
    wanted = np.linalg.lstsq(A, labels, rcond=1e-12)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = ic.LinearRegression().fit(X, y)
    found = model.coef_.T
    again = model.replay()[0]
    assert np.allclose(again, model.coef_, rtol=1e-9, atol=1e-9 * np.abs(found).max())
    return np.abs(found - wanted).max() / np.abs(wanted).max(), np.abs(A @ (found - wanted)).max() / np.abs(y).max()


def copied():
    X, y = load_breast_cancer(return_X_y=True)
    return np.column_stack([X, 2.54 * X[:, 0]]), y


def coded():
    draw = np.random.default_rng(0)
    codes = OneHotEncoder().fit_transform(draw.integers(0, 5, (200, 3))).toarray()
    return np.column_stack([codes, draw.integers(0, 1000, (200, 1))]), draw.standard_normal(200)


def powers():
    X, y = load_diabetes(return_X_y=True)
    return PolynomialFeatures(3, include_bias=False).fit_transform(X[:60, :6]), y[:60]


def few():
    X, y = load_breast_cancer(return_X_y=True)
    return X[:20], y[:20].astype(float)


@pytest.mark.parametrize("data", [copied, coded, powers, few])
def test_dependent_columns_have_the_shortest_coefficients(data):
    coefficients, predictions = apart(*data())
    assert coefficients < 1e-10
    assert predictions < 1e-10


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(-6, 6), st.integers(1, 3), st.integers(1, 2))
def test_a_dependency_in_other_units_costs_no_digits(seed, power, copies, targets):
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((40, 4))
    X = np.column_stack([X, *(10.0**power * X @ draw.integers(-2, 3, 4) for _ in range(copies))])
    X = X[:, X.std(0) > 0]
    Y = draw.standard_normal((40, targets))
    assert apart(X, Y if targets > 1 else Y[:, 0])[0] < 1e-9
