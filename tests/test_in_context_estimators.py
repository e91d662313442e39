"""scikit-learn estimators fitted by attention: scikit-learn's own checks, and its own coefficients."""

import warnings

import mpmath
import numpy as np
import pytest
from scipy import sparse

import anchorhead as ah

sklearn = pytest.importorskip("sklearn")
from sklearn import linear_model  # noqa: E402
from sklearn.datasets import load_breast_cancer, load_diabetes  # noqa: E402
from sklearn.exceptions import ConvergenceWarning  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402

ic = ah.in_context
SKIPPED = {
    "check_array_api_input",
    "check_regressor_data_not_an_array",
    "check_classifier_data_not_an_array",
    "check_sample_weights_pandas_series",
}
"""Skipped by scikit-learn itself: the array API is not switched on, and pandas may not be installed."""


def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X), y.astype(float)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ic.ESTIMATORS)
def test_scikit_learns_own_checks(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(getattr(ic, name)(), on_fail=None)
    assert len(results) > 40
    assert not [r for r in results if r["status"] == "failed"]
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= SKIPPED


EXACT = {"tol": 1e-12, "max_iter": 100_000}
PAIRS = [
    (ic.LinearRegression(), linear_model.LinearRegression(), diabetes),
    (ic.Ridge(1.0), linear_model.Ridge(1.0), diabetes),
    (ic.Ridge(1.0), linear_model.Ridge(1.0), cancer),
    (ic.Lasso(1.0), linear_model.Lasso(1.0, **EXACT), diabetes),
    (ic.Lasso(0.05), linear_model.Lasso(0.05, **EXACT), cancer),
    (ic.LogisticRegression(), linear_model.LogisticRegression(**EXACT), cancer),
    (ic.PoissonRegressor(), linear_model.PoissonRegressor(**EXACT), diabetes),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("ours", "theirs", "data"), PAIRS)
def test_coefficients_are_scikit_learns(ours, theirs, data):
    X, y = data()
    ours.fit(X, y)
    theirs.fit(X, y)
    for name in ("coef_", "intercept_"):
        found, expected = np.ravel(getattr(ours, name)), np.ravel(getattr(theirs, name))
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    assert np.allclose(ours.predict(X), theirs.predict(X), rtol=1e-4)
    proof = ours.certificate_
    assert proof.level == "proved"
    assert proof.bound <= 1e-6 * np.abs(y).max()
    apart = np.abs(np.append(ours.coef_, ours.intercept_) - np.append(theirs.coef_, theirs.intercept_))
    assert (apart <= np.array(proof.outputs) + 1e-5 * np.abs(theirs.coef_).max()).all()


def test_a_certificate_speaks_of_the_coefficients_in_the_units_of_the_data():
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:, :3] * [1.0, 1e3, 1e-3] + [0, 5, 7], 1e3 * y
    ours = ic.Ridge(1e-3).fit(X, y)
    wide, target = X.astype(np.longdouble), y.astype(np.longdouble)
    A, b = wide - wide.mean(0), target - target.mean()
    with mpmath.workdps(50):
        left = mpmath.matrix((A.T @ A + 1e-3 * np.eye(3)).tolist())
        exact = [float(v) for v in mpmath.lu_solve(left, mpmath.matrix((A.T @ b).tolist()))]
    exact.append(float(target.mean() - sum(wide.mean(0) * np.array(exact))))
    apart = np.abs(np.append(ours.coef_, ours.intercept_) - exact)
    assert ours.certificate_.level == "proved"
    assert (apart <= np.array(ours.certificate_.outputs)).all()
    assert ours.certificate_.bound == max(ours.certificate_.outputs) < 1e-2 * np.abs(exact).max()
    assert "coef_" in str(ours.certificate_)


@pytest.mark.heavy
def test_huber_finds_a_better_minimum_than_scikit_learn_stops_at():
    X, y = diabetes()
    ours, theirs = ic.HuberRegressor().fit(X, y), linear_model.HuberRegressor(tol=1e-12, max_iter=100_000).fit(X, y)

    def objective(model):
        z = np.abs(y - model.predict(X)) / model.scale_
        loss = np.where(z <= 1.35, z**2, 2 * 1.35 * z - 1.35**2)
        return model.scale_ * (len(y) + loss.sum()) + 1e-4 * (model.coef_**2).sum()

    assert objective(ours) <= objective(theirs)
    assert np.abs(ours.coef_ - theirs.coef_).max() <= 1e-4 * np.abs(theirs.coef_).max()
    assert ours.scale_ == pytest.approx(theirs.scale_, rel=1e-5)
    assert (ours.outliers_ == theirs.outliers_).mean() > 0.99


def test_penalties_are_on_the_original_columns():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3)) * [1, 10, 0.1] + [5, 0, 1]
    y = X @ [1.0, -0.2, 3.0] + 0.1 * rng.standard_normal(60)
    for ours, theirs in ((ic.Ridge(2.0), linear_model.Ridge(2.0)), (ic.Lasso(0.1), linear_model.Lasso(0.1, **EXACT))):
        assert np.allclose(ours.fit(X, y).coef_, theirs.fit(X, y).coef_, rtol=1e-6, atol=1e-8)
    ours, theirs = ic.Ridge(2.0, fit_intercept=False), linear_model.Ridge(2.0, fit_intercept=False)
    assert np.allclose(ours.fit(X, y).coef_, theirs.fit(X, y).coef_, rtol=1e-6)


def test_without_an_intercept_it_is_the_number_zero_for_several_targets_too():
    draw = np.random.default_rng(0)
    X, Y = draw.standard_normal((20, 3)), draw.standard_normal((20, 2))
    for name in ("LinearRegression", "Ridge", "Lasso"):
        ours, theirs = (getattr(of, name)(fit_intercept=False).fit(X, Y) for of in (ic, linear_model))
        assert ours.intercept_ == theirs.intercept_ == 0.0
        assert np.shape(ours.intercept_) == np.shape(theirs.intercept_) == ()
        assert ours.certificate_.level == "proved"
    assert ic.Ridge([1.0, 2.0], fit_intercept=False).fit(X, Y).certificate_.level == "proved"


def test_columns_of_any_scale_are_fitted():
    X = np.random.default_rng(0).standard_normal((20, 2))
    y = X @ [1.0, -2.0]
    for scale in (1e-12, 1e9):
        assert ic.LinearRegression().fit(X * scale, y).score(X * scale, y) > 1 - 1e-9


def test_probabilities_and_wrong_labels():
    X, y = cancer()
    model = ic.LogisticRegression(C=0.01).fit(X[:100, :3], y[:100])
    probabilities = model.predict_proba(X[:5, :3])
    assert np.allclose(probabilities.sum(1), 1)
    assert np.allclose(probabilities[:, 1], 1 / (1 + np.exp(-model.decision_function(X[:5, :3]))))
    with pytest.raises(ah.AnchorheadError, match="one class"):
        model.fit(X[:9, :3], np.ones(9))
    with pytest.raises(ah.AnchorheadError, match="Poisson"):
        ic.PoissonRegressor().fit(X[:9, :3], -np.ones(9))
    with pytest.raises(ah.AnchorheadError, match="epsilon"):
        ic.HuberRegressor(epsilon=0.5).fit(X[:9, :3], y[:9])
    with pytest.raises(ah.AnchorheadError, match="alpha"):
        ic.Ridge(-1.0).fit(X[:9, :3], y[:9])


@pytest.mark.parametrize(
    "model",
    [ic.Ridge(tol="a"), ic.Ridge(tol=float("nan")), ic.Lasso(max_iter=0), ic.LinearRegression(fit_intercept="x"),
     ic.HuberRegressor(max_iter=1.5), ic.LogisticRegression(tol=-1.0)],
)  # fmt: skip
def test_options_that_are_none_are_refused(model):
    with pytest.raises(ah.AnchorheadError, match=r"^(tol|max_iter|fit_intercept)=.* must be"):
        model.fit([[0.0], [1.0], [2.0]], [0, 1, 1])


@pytest.mark.parametrize(
    ("model", "weights"),
    [(ic.KernelRidge(-1), None), (ic.KernelRidge(1, gamma=0), None), (ic.NadarayaWatson(0), None), (ic.Ridge(), -1.0),
     (ic.Ridge(), 0.0), (ic.Ridge(), np.nan), (ic.KernelRidge(True), None), (ic.KernelRidge(gamma=True), None),
     (ic.NadarayaWatson(True), None), (ic.HuberRegressor(True), None), (ic.Ridge(True), None),
     (ic.Ridge(10**400), None), (ic.LogisticRegression(True), None)],
)  # fmt: skip
def test_every_refusal_is_one_of_ours(model, weights):
    with pytest.raises(ah.AnchorheadError, match=r"must be a|weight"):
        model.fit([[0.0], [1.0], [2.0]], [0, 1, 1], *([] if weights is None else [np.full(3, weights)]))


@pytest.mark.parametrize("classes", [2, 3])
def test_logarithms_of_probabilities(classes):
    X = np.linspace(-1, 1, 30)[:, None]
    model = ic.LogisticRegression().fit(X, np.arange(30) // (30 // classes))
    assert np.allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X), atol=1e-13)
    assert np.isfinite(model.predict_log_proba(1e6 * X)).all()


def test_a_kernel_ridge_that_cannot_be_speaks_of_its_own_parameters():
    X = np.linspace(-1, 1, 30)[:, None]
    with pytest.raises(ah.AnchorheadError, match=r"alpha=1e-300 is too small for 30 examples"):
        ic.KernelRidge(alpha=1e-300).fit(X, X[:, 0])


def test_a_run_that_does_not_converge_says_so():
    X, y = cancer()
    with pytest.warns(ConvergenceWarning, match="after 2 steps; increase max_iter or decrease C"):
        ic.LogisticRegression(max_iter=2).fit(X, y)


def test_dir_has_the_estimators_and_only_what_is_public():
    assert set(dir(ic)) == {*ic.__all__, *ic.ESTIMATORS}


def test_penalties_that_are_none_are_refused_in_one_sentence():
    X, y = np.arange(8.0).reshape(4, 2) ** 2, np.arange(4.0)
    with pytest.raises(ah.AnchorheadError, match=r"^alpha has the shape \(3,\), and y has 1 target;"):
        ic.Ridge([1, 2, 3]).fit(X, y)
    for C in (0, -1, "a"):
        with pytest.raises(ah.AnchorheadError, match=r"^C=.* must be a positive number; math.inf is no penalty.$"):
            ic.LogisticRegression(C).fit(X, y > 1)


@pytest.mark.parametrize(
    ("model", "advice"),
    [(ic.LogisticRegression(1e-310), "C=1e-310 is so small .* increase it"),
     (ic.PoissonRegressor(1e308), "alpha=1e.*308 is so large .* decrease it"),
     (ic.HuberRegressor(alpha=1e308), "alpha=1e.*308 is so large .* decrease it")],
)  # fmt: skip
def test_penalties_beyond_the_largest_float_are_refused(model, advice):
    X = np.random.default_rng(0).standard_normal((20, 2))
    with pytest.raises(ah.AnchorheadError, match=advice):
        model.fit(X, np.arange(20) % 2 * (1e3 if "Huber" in str(model) else 1), sample_weight=np.full(20, 1e-3))


def test_labels_of_one_column_have_scikit_learns_shapes():
    X, y = diabetes()
    for name in ("LinearRegression", "Ridge", "Lasso"):
        ours, theirs = (getattr(place, name)().fit(X, y[:, None]) for place in (ic, linear_model))
        for part in ("coef_", "intercept_"):
            assert np.shape(getattr(ours, part)) == np.shape(getattr(theirs, part))
        assert ours.predict(X).shape == theirs.predict(X).shape


def test_coefficients_that_were_changed_have_no_certificate():
    X, y = diabetes()
    model = ic.Ridge().fit(X, y)
    kept = model.certificate_
    model.coef_[0] += 1
    assert model.certificate_ is None
    assert "changed after the fit" in model.certificate_missing_
    model.fit(X, y)
    assert str(model.certificate_) == str(kept)
    model.intercept_ = 0.0
    assert model.certificate_ is None


def test_a_certificate_of_coefficients_speaks_of_them():
    X, y = diabetes()
    said = str(ic.Ridge().fit(X, np.column_stack([y, -y])).certificate_)
    assert "10 coefficients and the intercept of each of 2 targets" in said
    shown = ic.Ridge(fit_intercept=False).fit(X[:, :2], y).certificate_
    assert "2 coefficients, float64" in str(shown)
    assert "box" not in str(shown)
    assert "bound of x1" in shown._repr_html_()
    assert "intercept_ of the minimiser" in said


def _caught(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return found


def test_warnings_point_at_the_line_that_called():
    X, y = diabetes()
    calls = [lambda: ic.Lasso(0.1, max_iter=1).fit(X, y), lambda: ic.Ridge().fit(sparse.csr_matrix(X), y),
             lambda: ic.Ridge().fit(X, y).predict(sparse.csr_matrix(X)),
             lambda: ic.LogisticRegression(max_iter=1).fit(X, y > 150),
             lambda: ic.NadarayaWatson().fit(sparse.csr_matrix(X), y)]  # fmt: skip
    for call in calls:
        (one,) = _caught(call)
        assert one.filename == __file__


def test_separable_classes_are_not_blamed_on_the_columns_nor_on_the_number_of_steps():
    X = np.random.default_rng(8).normal(size=(60, 4))
    model = ic.LogisticRegression(C=np.inf)
    (one,) = _caught(lambda: model.fit(X, np.digitize(X[:, 0], [-0.5, 0.5])))
    assert model.n_iter_ < model.max_iter
    assert "max_iter" not in str(one.message)
    assert "decrease C" in str(one.message)
    assert "the minimum lies at infinity, since the classes can be separated perfectly" in str(one.message)
    assert model.certificate_missing_.startswith("without a penalty the minimum lies at infinity")


@pytest.mark.parametrize(("y", "most"), [([0, 0, 1, 1], 200), ([0, 0, 1, 1], 3), ([0, 0, 1, 2], 3)])
def test_separated_classes_without_a_penalty_are_named_and_a_penalty_helps(y, most):
    X = [[0.0], [1.0], [2.0], [3.0]]
    (one,) = _caught(lambda: ic.LogisticRegression(np.inf, max_iter=most).fit(X, y))
    assert "max_iter" not in str(one.message)
    assert "separated perfectly" in str(one.message)
    assert not _caught(lambda: ic.LogisticRegression(1.0).fit(X, y))


@pytest.mark.parametrize("intercept", [True, False])
def test_a_certificate_has_a_bound_for_the_intercept_where_one_is_fitted(intercept):
    X, y = load_diabetes(return_X_y=True)
    model = ic.Ridge(fit_intercept=intercept).fit(X, np.column_stack([y, -y]))
    rows = np.reshape(model.certificate_.outputs, (len(model.coef_), -1))
    assert rows.shape == (2, 10 + intercept)


def test_classes_that_overlap_are_not_called_separated():
    X = [[0.0], [1.0], [2.0], [3.0]]
    assert not _caught(lambda: ic.LogisticRegression(np.inf).fit(X, [0, 1, 0, 1]))
    (one,) = _caught(lambda: ic.LogisticRegression(np.inf, max_iter=1).fit(X, [0, 1, 0, 1]))
    assert "increase max_iter" in str(one.message)


def test_coefficients_that_are_known_to_few_digits_are_warned_of():
    draw = np.random.default_rng(5)
    X = draw.normal(size=(80, 4))
    y = X @ [1, 2, 3, 4] + draw.normal(size=80) * 3 > 0
    assert not _caught(lambda: ic.LogisticRegression(C=1e6).fit(X, y))
    X = np.column_stack([X, X[:, 0] + 1e-8 * draw.normal(size=80)])
    assert not _caught(lambda: ic.LogisticRegression(C=1e6).fit(X, y))  # the penalty tells the columns apart
    (one,) = _caught(lambda: ic.LogisticRegression(C=1e12).fit(X, y))
    assert "of the largest only" in str(one.message)
    assert issubclass(one.category, ConvergenceWarning)
