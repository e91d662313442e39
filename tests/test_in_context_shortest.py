"""Least squares on dependent columns: the shortest coefficients in the units of the data, against singular values and
rational arithmetic."""

import warnings

import numpy as np
import pytest
from flint import fmpq, fmpq_mat
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


def rational(X, y, intercept):
    """The shortest coefficients in rational numbers, as floats: F^T (F F^T)^-1 of what the columns of a basis get, F
    the combinations of them that the columns are."""
    n, d = X.shape
    A = fmpq_mat(n, d, [fmpq(*float(v).as_integer_ratio()) for v in X.ravel()])
    labels = fmpq_mat(n, 1, [fmpq(*float(v).as_integer_ratio()) for v in y])
    if intercept:
        centre = fmpq_mat(n, n, [fmpq(int(i == j)) - fmpq(1, n) for i in range(n) for j in range(n)])
        A, labels = centre * A, centre * labels
    reduced, rank = A.rref()
    F = fmpq_mat(rank, d, [reduced[i, j] for i in range(rank) for j in range(d)])
    firsts = [next(j for j in range(d) if F[i, j] != 0) for i in range(rank)]
    basis = fmpq_mat(n, rank, [A[i, j] for i in range(n) for j in firsts])
    parts = (basis.transpose() * basis).solve(basis.transpose() * labels)
    w = F.transpose() * (F * F.transpose()).solve(parts)
    return np.array([int(w[j, 0].p) / int(w[j, 0].q) for j in range(d)])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([3, 30, 100]), st.booleans(), st.booleans())
def test_groups_of_dependent_columns_in_units_far_Xare_those_of_rational_arithmetic(seed, power, intercept, wide):
    draw = np.random.default_rng(seed)
    count = int(draw.integers(3, 9))
    own = int(draw.integers(1, count))
    n = int(draw.integers(2, count)) if wide else 16
    mixed = np.concatenate([np.eye(own), draw.integers(-2, 3, (count - own, own))])[draw.permutation(count)]
    X = draw.integers(-5, 6, (n, own)) @ mixed.T * 2.0 ** draw.integers(-power, power + 1, count)
    X = X[:, X.std(0) > 0]
    if not X.size:
        return
    y, size = draw.standard_normal(n), X.std(0)
    wanted = rational(X, y, intercept)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        for model in (ic.LinearRegression(fit_intercept=intercept), ic.Ridge(0.0, fit_intercept=intercept)):
            off = np.abs(model.fit(X, y).coef_ - wanted)
            most = 1e-9 if wide else 1e-11
            assert off.max() <= most * np.abs(wanted).max()
            assert (off * size).max() <= most * np.abs(wanted * size).max()
            assert np.allclose(model.replay()[0], model.coef_, rtol=1e-12, atol=0)


@pytest.mark.parametrize("unit", [2.0**20, 2.0**36, 1e30, 1e-30, 1e300, 1e-300])
def test_dependent_groups_in_other_units_leave_predictions_as_they_are(unit):
    draw = np.random.default_rng(0)
    a, b, c = draw.integers(-5, 6, (20, 3)).T.astype(float)
    y = draw.standard_normal(20)
    X = np.column_stack([a * unit, 3 * (a * unit), b, c, b + c])
    model = ic.LinearRegression().fit(X, y)
    even = ic.LinearRegression().fit(np.column_stack([a, 3 * a, b, c, b + c]), y)
    assert model.score(X, y) == pytest.approx(0.32507597039536, abs=1e-13)
    assert np.allclose(model.coef_ * [unit, unit, 1, 1, 1], even.coef_, rtol=1e-11)


@pytest.mark.parametrize("bits", [30, 38, 44])
def test_where_the_shortest_would_lose_the_predictions_that_is_said_and_advice_helps(bits):
    draw = np.random.default_rng(0)
    a, b = draw.integers(-5, 6, (20, 2)).T.astype(float)
    y = draw.standard_normal(20)
    best = ic.LinearRegression().fit(np.column_stack([a, b]), y).score(np.column_stack([a, b]), y)
    X = np.column_stack([a, a + 2.0**-bits * b, b]) * [2.0**100, 2.0**100, 1.0]
    with pytest.warns(ConvergenceWarning, match="rounding hides which of the coefficients"):
        model = ic.LinearRegression().fit(X, y)
    assert model.score(X, y) == pytest.approx(best, abs=1e-13)
    assert np.allclose(model.replay()[0], model.coef_, rtol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        for eased in (X / X.std(0), X[:, 1:]):
            assert ic.LinearRegression().fit(eased, y).score(eased, y) == pytest.approx(best, abs=1e-13)
