"""Fits by attention against scikit-learn's and exact arithmetic, on data that nobody chose: collinear, ill-conditioned,
more columns than examples, any units, weights, several targets and classes."""

import math
import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.in_context.minimiser_bound import distances
from anchorhead.in_context.minimiser_units import Problem

sklearn = pytest.importorskip("sklearn")
from scipy import linalg, sparse  # noqa: E402
from sklearn import linear_model  # noqa: E402
from sklearn.datasets import load_breast_cancer, load_iris, load_wine  # noqa: E402
from sklearn.exceptions import ConvergenceWarning  # noqa: E402
from sklearn.kernel_ridge import KernelRidge  # noqa: E402
from sklearn.preprocessing import PolynomialFeatures  # noqa: E402

from anchorhead.in_context.fit_smooth import MOST_INVERSIONS  # noqa: E402
from anchorhead.in_context.linear_models import DensifiedWarning  # noqa: E402

ic = ah.in_context
EXACT = {"tol": 1e-12, "max_iter": 100_000}
SEEDS = st.integers(0, 10**6)


def drawn(seed, examples, columns):
    draw = np.random.default_rng(seed)
    return draw, draw.standard_normal((examples, columns))


def shortest(X, Y, weights):
    """The shortest least-squares coefficients of centred data, by singular values."""
    root = np.sqrt(weights)[:, None]
    A, B = X - np.average(X, axis=0, weights=weights), Y - np.average(Y, axis=0, weights=weights)
    return linalg.lstsq(root * A, root * B, cond=1e-11)[0].T


def agree(found, wanted, tol):
    assert np.abs(found - wanted).max() <= tol * np.abs(wanted).max() + 1e-300


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 12), st.integers(1, 12), st.integers(0, 3), st.booleans())
def test_least_squares_are_the_shortest_whatever_the_shape(seed, examples, columns, copies, weighted):
    draw, X = drawn(seed, examples, columns)
    X = np.column_stack([X, *(X @ draw.standard_normal(columns) for _ in range(copies))])
    Y, weights = draw.standard_normal((examples, 2)), np.ones(examples)
    if weighted:
        weights = draw.random(examples) * (draw.random(examples) > 0.3)
        weights[0] = 1.0
    ours = ic.LinearRegression().fit(X, Y, sample_weight=weights if weighted else None)
    wanted = shortest(X, Y, weights)
    sizes = np.linalg.svd((X - np.average(X, axis=0, weights=weights))[weights > 0], compute_uv=False)
    worst = sizes[0] / sizes[sizes > 1e-11 * sizes[0]].min() if sizes.size and sizes[0] > 0 else 1.0
    assert np.abs(ours.coef_ - wanted).max() <= 1e-11 * max(worst, 10) * (np.abs(wanted).max() + 1e-9)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.floats(0, 5), st.floats(-8, 8))
def test_ill_conditioned_columns_in_any_units(seed, digits, unit):
    draw, X = drawn(seed, 60, 4)
    X[:, 1] = X[:, 0] + 10.0**-digits * X[:, 1]
    X, y = (X + draw.uniform(-10, 10, 4)) * 10.0 ** (unit * draw.uniform(-1, 1, 4)), draw.standard_normal(60)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        ours = ic.LinearRegression().fit(X, y)
    size = X.std(0)
    wanted = shortest(X / size, y[:, None], np.ones(60))[0] / size
    lost = 10.0 ** (digits - 16) * np.abs(X / size).max()
    agree(ours.coef_ * size, wanted * size, 1e-10 + 1e3 * lost)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.floats(-6, 3), st.booleans(), st.booleans())
def test_ridge_with_weights_targets_and_either_shape(seed, power, tall, intercept):
    draw, X = drawn(seed, *((30, 5) if tall else (5, 12)))
    Y, weights = draw.standard_normal((len(X), 2)), draw.random(len(X)) + 0.01
    ours, theirs = (m(10.0**power, fit_intercept=intercept) for m in (ic.Ridge, linear_model.Ridge))
    for model in (ours, theirs):
        model.fit(X, Y, sample_weight=weights)
    agree(ours.coef_, theirs.coef_, 1e-7)
    agree(ours.predict(X), theirs.predict(X), 1e-7)
    if tall:
        wrong = np.abs(ours.coef_ - theirs.coef_).max()
        assert ours.certificate_.level == "proved"
        assert wrong <= ours.certificate_.bound + 1e-12 * np.abs(theirs.coef_).max()


@settings(max_examples=12, deadline=None)
@given(SEEDS, st.floats(-3, 0), st.booleans())
def test_the_lasso_finds_the_same_zeros(seed, power, tall):
    draw, X = drawn(seed, *((40, 6) if tall else (8, 12)))
    y, weights = X[:, 0] - X[:, 1] + 0.3 * draw.standard_normal(len(X)), draw.random(len(X)) + 0.1
    ours, theirs = ic.Lasso(10.0**power), linear_model.Lasso(10.0**power, **EXACT)
    for model in (ours, theirs):
        model.fit(X, y, sample_weight=weights)

    def objective(model):
        r = y - model.predict(X)
        return weights @ r**2 / (2 * weights.sum()) + model.alpha * np.abs(model.coef_).sum()

    assert objective(ours) <= objective(theirs) * (1 + 1e-8) + 1e-12
    if tall:
        assert np.abs(ours.coef_ - theirs.coef_).max() <= 1e-6 * max(np.abs(theirs.coef_).max(), 1e-3)


def test_the_lasso_converges_on_more_columns_than_examples_with_a_small_penalty():
    draw, X = drawn(0, 30, 80)
    y, told = X[:, :5] @ [3.0, -2.0, 1.0, 0.5, 4.0] + 0.1 * draw.standard_normal(30), list[str]()
    ours = ic.Lasso(1e-4, progress=told.append).fit(X, y)
    theirs = linear_model.Lasso(1e-4, **EXACT).fit(X, y)
    assert ((ours.coef_ != 0) == (theirs.coef_ != 0)).all()
    agree(ours.coef_, theirs.coef_, 1e-8)
    assert ours.certificate_.bound < 1e-8
    assert not any("inf" in line for line in told)
    with pytest.warns(ConvergenceWarning, match="increase max_iter"):
        missing = ic.Lasso(1e-4, max_iter=200).fit(X, y).certificate_missing_
    assert missing == "the fit has not converged after 200 steps: increase max_iter or increase alpha"
    wide = ic.Lasso(0.2).fit(X, y)
    assert wide.prompt_[0].shape[1] < 80
    agree(wide.replay()[0], wide.coef_, 1e-9)


@settings(max_examples=8, deadline=None)
@given(SEEDS, st.integers(2, 4), st.floats(-2, 2))
def test_logistic_regression_of_two_classes_and_more(seed, classes, power):
    draw, X = drawn(seed, 60, 3)
    X = X * [1, 100, 0.01] + [0, 1000, 0]
    y, weights = draw.integers(0, classes, 60), draw.random(60)
    y[:classes] = range(classes)
    ours = ic.LogisticRegression(10.0**power).fit(X, y, sample_weight=weights)
    theirs = linear_model.LogisticRegression(C=10.0**power, solver="newton-cholesky", **EXACT)
    theirs.fit(X, y, sample_weight=weights)
    agree(ours.coef_ * X.std(0), theirs.coef_ * X.std(0), 1e-6)
    agree(ours.predict_proba(X), theirs.predict_proba(X), 1e-6)
    assert not ours.certificate_missing_
    assert ours.certificate_.level == "proved"
    assert "3 coefficients and the intercept" + " of each of" * (classes > 2) in str(ours.certificate_)
    assert ours.certificate_.bound < 1e-5 * max(np.abs(ours.coef_).max(), np.abs(ours.intercept_).max())


@settings(max_examples=8, deadline=None)
@given(SEEDS, st.integers(2, 3), st.floats(3, 9), st.floats(0, 2))
def test_classes_of_nearly_equal_columns_are_those_of_the_penalty(seed, classes, digits, power):
    draw, X = drawn(seed, 40, 3)
    X[:, 2] = X[:, 0] + 10.0**-digits * X[:, 2]
    y = draw.integers(0, classes, 40)
    y[:classes] = range(classes)
    ours = ic.LogisticRegression(10.0**power).fit(X, y)
    theirs = linear_model.LogisticRegression(C=10.0**power, solver="newton-cholesky", **EXACT).fit(X, y)
    agree(ours.coef_, theirs.coef_, 1e-6)
    assert ours.n_iter_ <= 10
    assert ours.certificate_.bound < 1e-8


@pytest.mark.filterwarnings("ignore:The coefficients are proved")
def test_an_inverse_of_too_many_steps_gets_fewer(monkeypatch):
    monkeypatch.setattr("anchorhead.in_context.fit_smooth.inversions", lambda top, least: MOST_INVERSIONS)
    _, X = drawn(0, 20, 2)
    X[:, 1] = X[:, 0] + 1e-6 * X[:, 1]
    for classes in (2, 3):
        ours = ic.LogisticRegression(1e6).fit(X, np.arange(20) % classes)
        assert ours.network_.inversions < MOST_INVERSIONS
        assert ours.certificate_.level == "proved"


@settings(max_examples=6, deadline=None)
@given(SEEDS, st.floats(3, 8))
def test_nearly_separable_classes_are_fitted_to_the_end(seed, power):
    draw, X = drawn(seed, 40, 3)
    y = (X @ [1.0, -2.0, 0.5] + 0.05 * draw.standard_normal(40) > 0).astype(int)
    y[:2] = 0, 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        ours = ic.LogisticRegression(10.0**power).fit(X, y)
    theirs = linear_model.LogisticRegression(C=10.0**power, solver="newton-cholesky", **EXACT).fit(X, y)
    agree(ours.coef_, theirs.coef_, 1e-5)
    agree(ours.intercept_, theirs.intercept_, 1e-3)


def test_separable_flowers_with_a_weak_penalty():
    X, y = load_iris(return_X_y=True)
    ours = ic.LogisticRegression(1e8).fit(X, y == 0)
    agree(ours.coef_[0], np.array([-1.88613, 8.29914, -16.05407, -8.76085]), 1e-5)
    assert ours.certificate_.bound < 0.01


@pytest.mark.parametrize("C", [1e20, math.inf])
def test_separable_classes_without_a_penalty_do_not_converge(C):
    _, X = drawn(0, 40, 2)
    with pytest.warns(ConvergenceWarning, match="C"):
        ic.LogisticRegression(C, max_iter=80).fit(X, X[:, 0] > 0)


def test_columns_whose_penalty_outweighs_them_leave_the_intercept():
    draw, X = drawn(0, 60, 5)
    y = X[:, 0] + draw.standard_normal(60) > 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        ours = ic.LogisticRegression().fit(1e-10 * X, y)
    chance = y.mean()
    assert ours.intercept_[0] == pytest.approx(math.log(chance / (1 - chance)), rel=1e-12)
    agree(ours.coef_[0], 1e-10 * X.T @ (y - chance), 1e-9)


def test_counts_and_huber_of_columns_whose_penalty_outweighs_them():
    draw, X = drawn(0, 60, 5)
    y = np.exp(X[:, 0]) + draw.random(60)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        counts = ic.PoissonRegressor().fit(1e-10 * X, y)
        huber = ic.HuberRegressor().fit(1e-10 * X, y)
    assert counts.intercept_ == pytest.approx(math.log(y.mean()), rel=1e-12)
    theirs = linear_model.HuberRegressor(**EXACT).fit(np.zeros((60, 1)), y)
    assert huber.intercept_ == pytest.approx(theirs.intercept_, rel=1e-4)
    assert huber.scale_ == pytest.approx(theirs.scale_, rel=1e-4)


@settings(max_examples=5, deadline=None)
@given(SEEDS, st.floats(-4, 0))
def test_counts(seed, power):
    draw, X = drawn(seed, 50, 3)
    y, weights = draw.poisson(np.exp(X[:, 0])), draw.random(50) + 0.1
    y[0] += 1
    ours, theirs = (
        ic.PoissonRegressor(10.0**power),
        linear_model.PoissonRegressor(alpha=10.0**power, solver="newton-cholesky", **EXACT),
    )
    for model in (ours, theirs):
        model.fit(X, y, sample_weight=weights)
    agree(ours.coef_, theirs.coef_, 1e-6)
    assert np.abs(ours.coef_ - theirs.coef_).max() <= ours.certificate_.bound + 1e-8


@pytest.mark.heavy
def test_unscaled_data_are_fitted():
    X, y = load_breast_cancer(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        ours = ic.LogisticRegression().fit(X, y)
    agree(ours.coef_, linear_model.LogisticRegression(solver="newton-cholesky", **EXACT).fit(X, y).coef_, 1e-9)
    assert ours.certificate_.bound <= 1e-6 * np.abs(ours.coef_).max()
    X, y = load_wine(return_X_y=True)
    agree(ic.LogisticRegression().fit(X, y).coef_,
          linear_model.LogisticRegression(solver="newton-cholesky", **EXACT).fit(X, y).coef_, 1e-8)  # fmt: skip


def logistic_minimiser(X, y, l2):
    """By Newton's method in 40 digits."""
    with mpmath.workdps(40):
        rows = [[mpmath.mpf(float(v)) for v in row] + [mpmath.mpf(1)] for row in X]
        w = mpmath.zeros(len(rows[0]), 1)
        for _ in range(60):
            gradient, hessian = mpmath.zeros(len(w), 1), mpmath.zeros(len(w), len(w))
            for row, label in zip(rows, y, strict=True):
                chance = 1 / (1 + mpmath.exp(-sum(a * b for a, b in zip(row, w, strict=True))))
                for i, a in enumerate(row):
                    gradient[i] += (chance - int(label)) * a
                    for j, b in enumerate(row):
                        hessian[i, j] += chance * (1 - chance) * a * b
            for i in range(len(w) - 1):
                gradient[i] += l2 * w[i]
                hessian[i, i] += l2
            w -= mpmath.lu_solve(hessian, gradient)
        return np.array([float(v) for v in w])


@settings(max_examples=6, deadline=None)
@given(SEEDS, st.floats(0, 1e-3))
def test_the_bound_on_a_minimiser_holds_wherever_the_coefficients_are(seed, moved):
    draw, X = drawn(seed, 20, 2)
    X = X * [1, 30] + [5, 0]
    y = draw.integers(0, 2, 20)
    exact = logistic_minimiser(X, y, 1.0)
    off = exact + moved * draw.standard_normal(3) / [1, 30, 1]
    problem = Problem(X, y.astype(float), np.ones(20), True, "logistic", 1.0)
    found = distances(problem, off[:2], off[2])
    if not isinstance(found, str):
        assert (np.abs(off - exact) <= found).all()
    else:
        assert "gradient" in found
        assert moved > 1e-6


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_the_bound_on_least_squares_holds(loss):
    draw, X = drawn(3, 40, 3)
    y = X @ [1.0, 2.0, 3.0] + 0.1 * draw.standard_normal(40)
    problem = Problem(X, y, np.ones(40), False, loss, corner=50.0 if loss == "huber" else math.inf)
    exact = np.linalg.lstsq(X, y, rcond=None)[0]
    for moved in (0.0, 1e-9, 1e-3):
        found = distances(problem, exact + moved, np.array(0.0))
        assert (moved <= found[:3] + 1e-15).all()
        assert found[:3].max() <= 50 * moved + 1e-12


def test_sparse_data_are_written_out_with_a_warning():
    draw, X = drawn(0, 30, 4)
    X[np.abs(X) < 1] = 0
    y = X @ [1.0, 2.0, 3.0, 4.0] + 0.1 * draw.standard_normal(30)
    for model in (ic.Ridge(), ic.Lasso(0.01), ic.KernelRidge()):
        plain = model.fit(X, y).predict(X)
        with pytest.warns(DensifiedWarning, match="dense array"):
            assert np.array_equal(model.fit(sparse.csr_array(X), y).predict(X), plain)


def test_several_targets_of_kernel_ridge():
    draw, X = drawn(0, 30, 2)
    Y = draw.standard_normal((30, 3))
    agree(ic.KernelRidge(0.1).fit(X, Y).predict(X), KernelRidge(0.1, kernel="rbf").fit(X, Y).predict(X), 1e-8)


def test_weights_that_are_none_are_refused():
    _, X = drawn(0, 9, 2)
    for weights, said in ((np.zeros(9), "non-zero"), (-np.ones(9), "Negative"), (np.ones(8), "sample_weight.shape")):
        with pytest.raises(ValueError, match=said):
            ic.Ridge().fit(X, X[:, 0], sample_weight=weights)


def test_progress_is_told_and_ctrl_c_ends_in_a_sentence():
    _, X = drawn(0, 30, 3)
    lines = []
    ic.LogisticRegression(progress=lines.append).fit(X, X[:, 0] > 0)
    assert any("gradient" in line for line in lines)

    def stop(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"Stopped while fitting LogisticRegression, at: step 1"):
        ic.LogisticRegression(progress=stop).fit(X, X[:, 0] > 0)
    with pytest.raises(ah.AnchorheadError, match="progress"):
        ic.Ridge(progress="loud").fit(X, X[:, 0])


def test_coefficients_without_one_minimiser_have_no_certificate_and_say_why():
    _, X = drawn(0, 30, 3)
    ours = ic.LinearRegression().fit(np.column_stack([X, X[:, 0]]), X[:, 1])
    assert ours.certificate_ is None
    assert "linearly dependent" in ours.certificate_missing_


@pytest.mark.parametrize(("digits", "warned"), [(6, 0), (8, 1), (12, 1), (17, 0)])
def test_nearly_dependent_columns_warn_with_advice_that_can_be_taken(digits, warned):
    draw, X = drawn(0, 60, 4)
    X[:, 1] = X[:, 0] + 10.0**-digits * X[:, 1]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ours = ic.LinearRegression().fit(X, draw.standard_normal(60))
    assert len(said) == warned
    assert not any("max_iter" in str(one.message) or "alpha" in str(one.message) for one in said)
    assert bool(ours.certificate_missing_) == (digits > 6)


def test_huber_does_not_run_away_from_powers_of_columns():
    """Far away all examples are outliers, and the gradient is small there too."""
    draw, X = drawn(0, 60, 4)
    y = X @ [1.0, 2.0, 0.0, -1.0] + 0.1 * draw.standard_normal(60)
    X = PolynomialFeatures(5).fit_transform(X[:, :2])

    def objective(model):
        away, scale = np.abs(y - model.predict(X)), model.scale_
        loss = np.where(away > 1.35 * scale, 2.7 * away - 1.35**2 * scale, away**2 / scale)
        return 60 * scale + loss.sum() + 1e-4 * model.coef_ @ model.coef_

    theirs = linear_model.HuberRegressor(tol=1e-10, max_iter=20_000).fit(X, y)
    assert objective(ic.HuberRegressor().fit(X, y)) <= objective(theirs) * (1 + 1e-9)


def huber_fit(X, y):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return ic.HuberRegressor().fit(X, y), [str(one.message) for one in said]


@settings(max_examples=8, deadline=None)
@given(SEEDS, st.floats(4, 14), st.integers(1, 5))
def test_huber_does_not_see_how_far_away_outliers_are(seed, power, count):
    draw, X = drawn(seed, 60, 3)
    y = X @ [1.0, 2.0, 0.0] + draw.standard_normal(60)
    near, far = y.copy(), y.copy()
    near[:count], far[:count] = 1e3, 10.0**power
    (one, _), (other, said) = huber_fit(X, near), huber_fit(X, far)
    assert not said
    agree(other.coef_, one.coef_, 1e-6)
    assert math.isclose(other.scale_, one.scale_, rel_tol=1e-6)


@pytest.mark.parametrize("noise", [1e-3, 1e-6, 1e-8])
def test_huber_finds_small_scales_or_says_that_rounding_hides_them(noise):
    draw, X = drawn(0, 80, 4)
    rest = draw.standard_normal(80)
    alone, _ = huber_fit(X, rest)
    found, said = huber_fit(X, 1000 * X[:, 0] + noise * rest)
    assert not said or noise < 1e-7
    if not said:
        assert np.abs(found.coef_[1:] / noise - alone.coef_[1:]).max() < 1e-2


def test_huber_of_labels_that_are_fitted_perfectly_is_silent_and_not_proved():
    draw, X = drawn(0, 20, 40)
    few = np.where(np.arange(80) < 20, draw.standard_normal(80), 0.0)
    for data, y in ((X, draw.standard_normal(20)), (X[:, :3], X[:, :3] @ [1.0, 2.0, 3.0]), (drawn(1, 80, 4)[1], few)):
        found, said = huber_fit(data, y)
        assert not said
        assert found.certificate_ is None
        assert "fitted perfectly" in found.certificate_missing_


def test_scores_are_those_of_scikit_learn():
    draw, X = drawn(0, 80, 3)
    counts, classes = draw.poisson(np.exp(X[:, 0])), X[:, 0] > draw.standard_normal(80)
    own = draw.random(80)
    for name, y in {"PoissonRegressor": counts, "LogisticRegression": classes, "Ridge": X[:, 1] + counts}.items():
        ours, theirs = getattr(ic, name)().fit(X, y), getattr(linear_model, name)(tol=1e-10).fit(X, y)
        for weights in (None, own):
            assert math.isclose(ours.score(X, y, weights), theirs.score(X, y, weights), abs_tol=1e-6)


def test_squares_warn_of_coefficients_that_are_hardly_known():
    draw, X = drawn(1, 40, 5)
    y, twice = draw.standard_normal(40), np.column_stack([X, X[:, 0] + 1e-10 * draw.standard_normal(40)])
    with pytest.warns(ConvergenceWarning, match=r"within .* of the largest only.*increase alpha or leave a column out"):
        ic.Ridge(1e-12).fit(twice, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ic.Ridge(0.1).fit(twice, y)


@pytest.mark.parametrize(("right", "wrong"), [(ic.Ridge(), {"alpha": -1.0}), (ic.KernelRidge(), {"alpha": 0.0})])
def test_a_refused_fit_leaves_nothing_fitted(right, wrong):
    _, X = drawn(0, 20, 2)
    right.fit(X, X[:, 0]).predict(X)
    with pytest.raises(ah.AnchorheadError):
        right.set_params(**wrong).fit(X[:5], X[:5, 1])
    with pytest.raises(sklearn.exceptions.NotFittedError):
        right.predict(X)
