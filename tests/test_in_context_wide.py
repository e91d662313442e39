"""Fits of more columns than examples: losses with an l2 penalty are fitted in the span of the examples."""

import numpy as np
import pytest

import anchorhead as ah

sklearn = pytest.importorskip("sklearn")
from sklearn import linear_model  # noqa: E402

ic = ah.in_context
EXACT = {"tol": 1e-12, "max_iter": 100_000}


def drawn(examples, columns):
    draw = np.random.default_rng(31)
    X = draw.standard_normal((examples, columns)) * np.geomspace(0.1, 10, columns) + 5
    X[:, 3] = 7.0
    return draw, X


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("name", ["logistic", "classes", "counts"])
def test_wide_data_are_fitted_in_the_span_of_their_examples(name, intercept):
    draw, X = drawn(20, 50)
    labels = {"logistic": draw.random(20) < 0.5, "classes": draw.integers(0, 3, 20), "counts": draw.poisson(2.0, 20)}
    weights, kind = draw.random(20) + 0.1, "PoissonRegressor" if name == "counts" else "LogisticRegression"
    ours = getattr(ic, kind)(fit_intercept=intercept).fit(X, labels[name], weights)
    theirs = getattr(linear_model, kind)(fit_intercept=intercept, solver="newton-cholesky", **EXACT)
    theirs.fit(X, labels[name], weights)
    assert ours.prompt_[0].shape[1] <= 21
    assert np.abs(ours.coef_ - theirs.coef_).max() <= 1e-6 * np.abs(theirs.coef_).max()
    assert ours.certificate_.bound <= 1e-6 * np.abs(ours.coef_).max()
    coef, intercepts = ours.replay()
    assert np.allclose(coef, ours.coef_, rtol=1e-6, atol=1e-9)
    assert np.allclose(intercepts, ours.intercept_, rtol=1e-6, atol=1e-7)


def objective(model, X, y):
    """scikit-learn's, of HuberRegressor."""
    away, scale, corner = np.abs(y - model.predict(X)), model.scale_, model.epsilon
    loss = np.where(away > corner * scale, 2 * corner * away - corner**2 * scale, away**2 / scale)
    return len(y) * scale + loss.sum() + model.alpha * model.coef_ @ model.coef_


@pytest.mark.parametrize(("examples", "columns", "alpha"), [(20, 40, 1.0), (30, 60, 0.1)])
def test_a_scale_that_solves_nothing_has_no_certificate(examples, columns, alpha):
    """Labels are fitted at every scale, so that the objective falls with it."""
    draw = np.random.default_rng(31)
    X = draw.standard_normal((examples, columns))
    y = X[:, :5].sum(1) + 0.1 * draw.standard_normal(examples)
    ours = ic.HuberRegressor(alpha=alpha).fit(X, y)
    theirs = linear_model.HuberRegressor(alpha=alpha, tol=1e-10, max_iter=20_000).fit(X, y)
    assert objective(ours, X, y) <= objective(theirs, X, y) * (1 + 1e-4)
    assert ours.certificate_ is None
    assert "solves the condition" in ours.certificate_missing_


def test_huber_counts_the_steps_at_all_scales_and_certifies_what_solves_its_condition():
    draw = np.random.default_rng(31)
    X = draw.standard_normal((20, 40))
    y = X[:, :5].sum(1) + 0.1 * draw.standard_normal(20)
    solved = ic.HuberRegressor(alpha=100.0).fit(X, y)
    assert solved.certificate_.bound < 1e-6
    assert solved.n_iter_ > 10
    with pytest.warns(sklearn.exceptions.ConvergenceWarning, match="after 1 step"):
        short = ic.HuberRegressor(alpha=100.0, max_iter=1).fit(X, y)
    assert short.certificate_ is None
    assert "not converged after 1 step" in short.certificate_missing_
