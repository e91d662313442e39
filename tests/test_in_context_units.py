"""Estimators on data at the ends: units near the least and largest floats, constants, penalties that outweigh all."""

import pickle
import warnings

import mpmath
import numpy as np
import pytest
import torch

import anchorhead as ah

sklearn = pytest.importorskip("sklearn")
from sklearn.datasets import load_diabetes, load_digits  # noqa: E402
from sklearn.exceptions import ConvergenceWarning  # noqa: E402

ic = ah.in_context
COLUMN, LABELS = np.array([[0.0], [1.0], [2.0], [4.0]]), np.array([1.0, 3.0, 4.0, 8.0])


@pytest.fixture(autouse=True)
def _no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        yield


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-158, 1e158, 1e300])
def test_data_in_all_units_are_fitted_with_a_finite_certificate(scale):
    for X, y, slope, middle in (
        (COLUMN * scale, LABELS, 12 / 7 / scale, 1.0),
        (COLUMN, LABELS * scale, 12 / 7 * scale, scale),
    ):
        model = ic.LinearRegression().fit(X, y)
        assert model.coef_[0] == pytest.approx(slope, rel=1e-12)
        assert model.intercept_ == pytest.approx(middle, rel=1e-12)
        assert 0 < model.certificate_.bound < 1e-12 * max(abs(slope), middle)
        for other in (ic.Ridge(), ic.Lasso()):
            assert np.isfinite(other.fit(X, y).certificate_.bound)
    small = ic.Ridge().fit(COLUMN * scale, LABELS).coef_[0]
    with mpmath.workdps(50):
        unit, moment = mpmath.mpf(scale), mpmath.mpf("8.75")
        assert small == pytest.approx(float(15 * unit / (moment * unit**2 + 1)), rel=1e-12)


def test_coefficients_beyond_floats_are_refused():
    with pytest.raises(ah.AnchorheadError, match="beyond the largest float"):
        ic.LinearRegression().fit(COLUMN * 1e-200, LABELS * 1e200)


@pytest.mark.parametrize("model", [ic.LinearRegression(), ic.Ridge(), ic.Lasso()])
def test_labels_that_are_all_alike_have_coefficients_zero(model):
    X, _ = load_diabetes(return_X_y=True)
    model.fit(X, np.full(442, 3.3))
    assert not model.coef_.any()
    assert model.intercept_ == 3.3
    assert model.certificate_.bound < 1e-10


def test_ridge_of_columns_in_units_that_are_far_apart():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(60, 4))
    y = X @ [1, -2, 0.5, 3] + draw.normal(size=60)
    X = X * [1e-8, 1e-3, 1e3, 1e8]
    model = ic.Ridge(1.0).fit(X, y)
    with mpmath.workdps(80):
        wide = mpmath.matrix(X.tolist())
        mean = [sum(wide[i, j] for i in range(60)) / 60 for j in range(4)]
        apart = mpmath.matrix(60, 4)
        for i in range(60):
            for j in range(4):
                apart[i, j] = wide[i, j] - mean[j]
        exact = mpmath.lu_solve(apart.T * apart + mpmath.eye(4), apart.T * mpmath.matrix(y.tolist()))
        off = [float(abs(mpmath.mpf(float(a)) - b)) for a, b in zip(model.coef_, exact, strict=True)]
    assert (np.array(off) <= model.certificate_.outputs[:4]).all()
    assert (np.array(off) <= 1e-9 * np.abs(model.coef_)).all()


@pytest.mark.parametrize("alpha", [2.2, 10.0, 1e300])
def test_a_lasso_whose_penalty_keeps_all_at_zero_ends_at_once(alpha):
    X, y = load_diabetes(return_X_y=True)
    model = ic.Lasso(alpha).fit(X, y)
    assert not model.coef_.any()
    assert model.intercept_ == pytest.approx(y.mean(), rel=1e-15)
    assert model.n_iter_ <= 100
    assert model.certificate_.bound < 1e-8


def test_constant_columns_have_coefficients_zero_and_leave_the_certificate():
    X, y = load_diabetes(return_X_y=True)
    wide = np.insert(X, 3, 0.1, axis=1)
    for model in (ic.LinearRegression(), ic.Ridge(), ic.Lasso(), ic.PoissonRegressor(), ic.HuberRegressor()):
        plain = model.fit(X, y).certificate_
        model.fit(wide, y)
        assert model.coef_[3] == model.certificate_.outputs[3] == 0
        assert model.certificate_.bound == pytest.approx(plain.bound, rel=0.5)
    X, y = load_digits(return_X_y=True)
    assert ic.Ridge().fit(X, y).certificate_.level == "proved"
    few = y < 2
    assert ic.LogisticRegression().fit(X[few], y[few]).certificate_.level == "proved"


def test_columns_below_the_least_normal_float_bring_no_raw_warning():
    draw = np.random.default_rng(0)
    X, y = draw.integers(-9, 9, (20, 2)) * 5e-324, draw.standard_normal(20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ah.AnchorheadError, match="beyond the largest float"):
            ic.LinearRegression().fit(X, y)
        ridge = ic.Ridge().fit(X, y)
        assert not ridge.coef_.any()
        assert ridge.certificate_.bound < 1e-13
        assert not ic.LogisticRegression().fit(X, y > 0).coef_.any()


def test_dependent_columns_are_named():
    X, y = load_diabetes(return_X_y=True)
    X = np.column_stack([np.ones(442), X, X[:, 1] - 2 * X[:, 4]])
    missing = ic.LinearRegression().fit(X, y).certificate_missing_
    assert missing.startswith("columns 2, 5 and 11 are linearly dependent")


MODELS = [ic.LinearRegression(), ic.Ridge(), ic.Lasso(), ic.PoissonRegressor(), ic.HuberRegressor(),
          ic.LogisticRegression()]  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_network_of_a_fit_runs_again_on_its_prompt(model, weighted):
    X, y = load_diabetes(return_X_y=True)
    X = np.insert(X[:40, :3], 1, 7.0, axis=1)
    y = (y[:40] > 100).astype(float) if isinstance(model, ic.LogisticRegression) else y[:40]
    model.fit(X, y, np.linspace(1, 2, 40) if weighted else None)
    coefficients, intercept = model.replay()
    assert np.allclose(coefficients, model.coef_, rtol=0, atol=1e-6 * np.abs(model.coef_).max())
    assert np.allclose(intercept, model.intercept_, rtol=1e-6)
    assert model.network_(*model.prompt_).isfinite().all()


def test_runs_through_the_examples_and_of_several_classes_and_targets_are_replayed():
    X, y = load_diabetes(return_X_y=True)
    wide = ic.Ridge().fit(X[:6], np.column_stack([y[:6], y[6:12]]))
    assert np.allclose(wide.replay()[0], wide.coef_, rtol=1e-9)
    classes = ic.LogisticRegression().fit(X[:60, :2], np.digitize(y[:60], [100, 150]))
    assert np.allclose(classes.replay()[0], classes.coef_, rtol=1e-6, atol=1e-9)


def test_kernel_ridge_is_zero_where_every_kernel_vanishes():
    X, y = load_diabetes(return_X_y=True)
    model = ic.KernelRidge(gamma=1.0).fit(X, np.column_stack([y, -y]))
    far = X[:3].copy()
    far[1, 4] = 1e6
    found = model.predict(far)
    assert not found[1].any()
    assert np.allclose(found[[0, 2]], model.predict(X[[0, 2]]))


@pytest.mark.parametrize("model", [ic.KernelRidge(), ic.NadarayaWatson()])
def test_predictions_tell_their_progress_and_ctrl_c_ends_in_a_sentence(model, monkeypatch):
    monkeypatch.setattr("anchorhead.in_context.kernel_estimators.ENTRIES", 400)
    X, y = load_diabetes(return_X_y=True)
    lines = []
    model.set_params(progress=lines.append).fit(X[:40], np.column_stack([y[:40]] * 2))
    whole = model.predict(X)
    assert any("queries are answered from 40 examples" in line for line in lines)
    assert np.allclose(whole[:50], model.predict(X[:50]), atol=1e-9)

    def stop(line):
        raise KeyboardInterrupt

    model.set_params(progress=stop)
    with pytest.raises(KeyboardInterrupt, match=f"^Stopped while predicting by {type(model).__name__}, at: 0 of 442"):
        model.predict(X)


def test_what_has_no_file_with_a_proof_says_so_and_is_kept_by_pickle(tmp_path):
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:20, :2], y[:20]
    fits = [ic.Ridge().fit(X, y), ic.LogisticRegression().fit(X, y > 100), ic.NadarayaWatson().fit(X, y)]
    descent = ic.gradient_descent("squared", features=2, examples=20, steps=3, learning_rate=0.1)
    ridge = ic.kernel_ridge(2, length=1.0, l2=0.1, steps=5, examples=20)
    for model in (*fits, descent, ridge):
        with pytest.raises(ah.AnchorheadError, match=r"has no file with a proof.*pickle"):
            model.save(tmp_path / "model")
    for model in fits:
        again = pickle.loads(pickle.dumps(model))
        assert (again.predict(X) == model.predict(X)).all()
        assert again.certificate_ == model.certificate_
    data = torch.tensor(X), torch.tensor(y) / 10
    for model, prompt in ((descent, data), (ridge, (*data, data[0]))):
        again = pickle.loads(pickle.dumps(model))
        assert (again(*prompt) == model(*prompt)).all()
        assert again.certificate == model.certificate


def test_how_short_the_shortest_coefficients_are():
    X, y = load_diabetes(return_X_y=True)
    for copy, said in ((X[:, 0], 1e-11), (1000 * X[:, 0], 1e-5), (X[:, 0] + X[:, 3], 1e-10)):
        wide = np.column_stack([X, copy])
        model = ic.LinearRegression().fit(wide, y)
        with mpmath.workdps(40):
            basis = mpmath.matrix((X - X.mean(0)).tolist())
            alone = mpmath.lu_solve(basis.T * basis, basis.T * mpmath.matrix((y - y.mean()).tolist()))
        own = np.array([float(v) for v in alone])
        mixed = np.linalg.lstsq(X, copy, rcond=None)[0].round(9)
        exact = np.append(own, 0.0) - np.append(mixed, -1.0) * (own @ mixed) / (mixed @ mixed + 1)
        assert np.abs(model.coef_ - exact).max() <= said * np.abs(exact).max()
        assert np.abs(model.predict(wide) - X @ own - y.mean()).max() <= 1e-11 * np.abs(y).max()
