"""Least squares, and the lasso, on columns that are nearly dependent, against singular values and exact arithmetic."""

import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah

pytest.importorskip("sklearn")
from scipy import linalg
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import Ridge
from sklearn.preprocessing import PolynomialFeatures

ic = ah.in_context
pytestmark = pytest.mark.heavy


def fitted(model, *data):
    """The fit, and what it warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(*data)
    return model, [str(one.message) for one in said]


def left(X, y, coefficients, intercept=0.0):
    """The root mean square of what is left of the labels."""
    return np.sqrt(np.mean((X @ coefficients + intercept - y) ** 2))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.floats(-12, 0), st.booleans())
def test_powers_of_a_column_leave_no_more_of_the_labels_than_singular_values_do(seed, degree, noise, weighted):
    draw = np.random.default_rng(seed)
    x = draw.uniform(-0.5, 1, 60)
    X, y = PolynomialFeatures(degree).fit_transform(x[:, None]), np.sin(8 * x) + 10.0**noise * draw.standard_normal(60)
    weights = draw.integers(1, 4, 60) if weighted else np.ones(60, int)
    model, _ = fitted(ic.LinearRegression(), X, y, weights if weighted else None)
    many, labels = np.repeat(X, weights, axis=0), np.repeat(y, weights)
    A = many - many.mean(0)
    wanted = linalg.lstsq(A / np.maximum(A.std(0), 1e-300), labels - labels.mean(), cond=1e-13)[0]
    least = left(A / np.maximum(A.std(0), 1e-300), labels - labels.mean(), wanted)
    assert left(many, labels, model.coef_, model.intercept_) <= least * (1 + 1e-6) + 1e-9
    again, middle = model.replay()
    assert left(many, labels, again[0], middle) <= least * (1 + 1e-6) + 1e-9


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.floats(6, 12), st.floats(-6, 6))
def test_columns_that_differ_in_their_last_digits_are_told_apart_or_warned_of(seed, digits, unit):
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((60, 3))
    X[:, 2] = X[:, 0] + 10.0**-digits * X[:, 2]
    X *= 10.0 ** (unit * draw.uniform(-1, 1, 3))
    size = X.std(0)
    model, said = fitted(ic.LinearRegression(fit_intercept=False), X, (X / size) @ [1.0, 2.0, 3.0])
    assert np.abs(model.coef_ * size - [1, 2, 3]).max() <= 10.0 ** (digits - 14)
    proof = model.certificate_
    sure = (
        proof is not None
        and (np.array(proof.outputs) * np.ptp(X, axis=0)).max() < 0.1 * np.ptp(X / size * 3, axis=0).max()
    )
    assert sure or any("nearly dependent" in one for one in said)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.floats(-14, 0), st.integers(5, 16))
def test_a_small_penalty_on_powers_has_the_objective_of_exact_arithmetic(seed, power, degree):
    draw = np.random.default_rng(seed)
    x = draw.uniform(0, 1, 30)
    X, y = x[:, None] ** np.arange(1, degree), np.sin(8 * x) + 0.1 * draw.standard_normal(30)
    alpha = 10.0**power
    model, _ = fitted(ic.Ridge(alpha), X, y)
    with mpmath.workdps(80):
        A, labels = mpmath.matrix(X.tolist()), mpmath.matrix(y.tolist())
        A = mpmath.matrix([[A[i, j] - sum(A[:, j]) / 30 for j in range(degree - 1)] for i in range(30)])
        labels = mpmath.matrix([v - sum(labels) / 30 for v in labels])

        def value(w):
            return sum(v**2 for v in A * w - labels) + alpha * sum(v**2 for v in w)

        least = value(mpmath.lu_solve(A.T * A + alpha * mpmath.eye(degree - 1), A.T * labels))
        assert value(mpmath.matrix(model.coef_.tolist())) <= least * (1 + mpmath.mpf("1e-6")) + mpmath.mpf("1e-18")


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.floats(4, 10), st.sampled_from([0.0, 1e-9, 1e-3]))
def test_examples_that_are_nearly_alike_leave_as_little_with_more_columns_than_them(seed, digits, alpha):
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((20, 50))
    X[1] = X[0] + 10.0**-digits * X[1]
    y = X @ draw.standard_normal(50)
    model, _ = fitted(ic.Ridge(alpha) if alpha else ic.LinearRegression(), X, y)
    A, labels = X - X.mean(0), y - y.mean()
    wanted = Ridge(alpha, solver="svd").fit(X, y).coef_ if alpha else linalg.lstsq(A, labels, cond=1e-13)[0]
    assert np.abs(A @ (model.coef_ - wanted)).max() <= 1e-8 * np.abs(y).max()
    assert np.abs(model.coef_ - wanted).max() <= 10.0 ** (digits - 13) * np.abs(wanted).max()


def test_an_outlying_row_is_no_reason_to_warn():
    draw = np.random.default_rng(0)
    X, y = 0.05 * draw.standard_normal((400, 10)), draw.standard_normal(400)
    X[0] *= 1e6
    model, said = fitted(ic.Ridge(), X, y)
    wanted = Ridge(solver="svd").fit(X, y).coef_
    assert not said
    assert np.abs(model.coef_ - wanted).max() < 1e-9 * np.abs(wanted).max()


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.floats(5, 8))
def test_a_lasso_beside_a_large_offset_ends_at_its_minimum_and_replays_it(seed, power):
    draw = np.random.default_rng(seed)
    X, y = draw.standard_normal((5, 2)) + 10.0**power, draw.standard_normal(5)
    model, said = fitted(ic.Lasso(1e-3, fit_intercept=False), X, y)

    def value(w):
        return np.mean((X @ w - y) ** 2) / 2 + 1e-3 * np.abs(w).sum()

    again = model.replay()[0]
    assert value(model.coef_) <= min(value(again), value(0 * again)) + 1e-7
    assert value(again) <= value(model.coef_) + 1e-6
    assert not any("not yet at the minimum" in one for one in said)


def minimiser_on(X, y, alpha, coefficients):
    """Of the lasso in exact arithmetic: on the columns of coefficients, with their signs; and all slopes there."""
    kept, n = np.flatnonzero(coefficients), len(X)
    with mpmath.workdps(80):
        A, labels = mpmath.matrix(X.tolist()), mpmath.matrix(y.tolist())
        own = mpmath.matrix(n, len(kept))
        for k, j in enumerate(kept):
            for i in range(n):
                own[i, k] = A[i, int(j)]
        signs = mpmath.matrix(np.sign(coefficients[kept]).tolist())
        w = mpmath.lu_solve(own.T * own, own.T * labels - n * mpmath.mpf(alpha) * signs)
        slopes = A.T * (labels - own * w) / n
        return np.array([float(v) for v in w]), max(abs(v) for v in slopes) <= alpha * (1 + mpmath.mpf("1e-60"))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(3, 17), st.sampled_from(["equal", "opposite", "sum"]))
def test_the_lasso_keeps_the_right_ones_of_nearly_dependent_columns_or_warns(seed, digits, kind):
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((30, 5))
    near = {"equal": X[:, 1], "opposite": -X[:, 1], "sum": X[:, 1] + X[:, 2]}[kind]
    X[:, 0] = near + 10.0**-digits * draw.standard_normal(30)
    y = X @ [1, 1, -0.5, 0, 0] + 0.3 * draw.standard_normal(30)
    model, said = fitted(ic.Lasso(0.05, fit_intercept=False), X, y)
    assert model.n_iter_ <= 400
    if model.certificate_ is None:
        assert any("linearly dependent, or so nearly" in one and "increase alpha" in one for one in said)
        return
    wanted, least = minimiser_on(X, y, 0.05, model.coef_)
    assert least
    kept = model.coef_ != 0
    assert (np.abs(model.coef_[kept] - wanted) <= np.array(model.certificate_.outputs)[kept] + 1e-18).all()
    assert digits > 5 or not said


def test_the_lasso_warns_of_equal_columns_and_gives_one_of_them_the_coefficient():
    draw = np.random.default_rng(0)
    X = draw.standard_normal((40, 30))
    X[:, 15:] = X[:, :15]
    y = X @ draw.standard_normal(30)
    model, said = fitted(ic.Lasso(0.01), X, y)
    (one,) = said
    assert "linearly dependent" in one
    assert not (model.coef_[:15] * model.coef_[15:]).any()
    alone, said = fitted(ic.Lasso(0.01), X[:, :15], y)
    assert not said
    assert np.abs(model.coef_[:15] + model.coef_[15:] - alone.coef_).max() < 1e-12


@pytest.mark.parametrize("name", ["certificate_", "certificate_missing_"])
def test_what_is_proved_is_asked_of_a_fit(name):
    with pytest.raises(NotFittedError):
        getattr(ic.Ridge(), name)
