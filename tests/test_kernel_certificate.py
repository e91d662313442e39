"""KernelRidge against its equations solved in 60 digits: what is said of one fit, down to small penalties."""

import warnings

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.digits import interval
from anchorhead.in_context.kernel_certificate import prediction_bounds
from anchorhead.in_context.kernel_inverse import KernelInverseNetwork

pytest.importorskip("sklearn")
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

ic = ah.in_context


def predicted(X, y, query, alpha, rate, counts=None):
    """Kernel ridge regression of these floats, in 60 digits; examples with weights as so many of them."""
    counts = np.ones(len(X)) if counts is None else counts
    with mpmath.workdps(60):
        X, query = ([[mpmath.mpf(v) for v in row] for row in part.tolist()] for part in (X, query))

        def kernels(rows):
            return mpmath.matrix([[mpmath.exp(-mpmath.mpf(rate) * sum((a - b) ** 2 for a, b in zip(r, x, strict=True)))
                                   for x in X] for r in rows])  # fmt: skip

        penalties = mpmath.diag([mpmath.mpf(alpha) / mpmath.mpf(w) for w in counts.tolist()])
        weights = mpmath.lu_solve(kernels(X) + penalties, mpmath.matrix(y.tolist()))
        return np.array([float(v) for v in kernels(query) * weights])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 14), st.integers(1, 3), st.integers(-11, 1), st.floats(0.01, 20))
def test_no_prediction_is_further_off_than_the_certificate_says(seed, examples, columns, power, rate):
    draw = np.random.default_rng(seed)
    X, y = draw.standard_normal((examples, columns)), 1e3 * draw.standard_normal(examples)
    query, alpha = 1.5 * draw.standard_normal((6, columns)), 10.0**power
    try:
        model = ic.KernelRidge(alpha, gamma=rate).fit(X, y)
    except ah.ToleranceError:
        assert alpha / examples < 1e-12
        return
    query = query[np.abs(query - model._centre).max(1) <= model.network_.limits["query"] * model.unit_]
    if not len(query):
        return
    centre = model._centre
    wanted = predicted(X - centre, y, query - centre, alpha, rate)
    off = np.abs(model.predict(query) - wanted).max()
    if model.certificate_ is None:
        assert "increase alpha" in model.certificate_missing_
    else:
        assert model.certificate_.level == "proved"
        assert off <= model.certificate_.bound < np.abs(y).max()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(-8, 0))
def test_the_bound_holds_for_weights_that_are_wrong(seed, power):
    draw = np.random.default_rng(seed)
    X, y = draw.standard_normal((8, 2)), draw.uniform(-1, 1, 8)
    l2, rate = 10.0**power, 0.5
    network = ic.kernel_ridge(2, 1.0, l2, 3, examples=8, bounds={"x": 8.0, "query": 8.0, "y": 1.0})
    b = torch.tensor(draw.standard_normal((8, 1)) * 10 ** draw.uniform(-3, 6))
    every = torch.ones(8, dtype=torch.float64)
    bound, left = prediction_bounds(network, torch.tensor(X), torch.tensor(y)[:, None], b, rate, every)
    found = network.answered(torch.tensor(X), b, torch.tensor(X))[:, 0].numpy()
    assert np.abs(found - predicted(X, y, X, 8 * l2, rate)).max() <= bound
    assert left <= bound


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(-9, 1), st.floats(0.01, 20), st.integers(0, 12))
def test_the_bound_holds_with_weights_and_none_are_examples_that_are_not_there(seed, examples, power, rate, spread):
    draw = np.random.default_rng(seed)
    X, y = draw.standard_normal((examples, 2)), 1e3 * draw.standard_normal(examples)
    query, alpha = 0.5 * draw.standard_normal((6, 2)), 10.0**power
    counts = 10 ** draw.uniform(-spread, spread, examples) * (draw.random(examples) < 0.8)
    counts[0] = 10.0 ** draw.uniform(-spread, spread)
    try:
        model = ic.KernelRidge(alpha, gamma=rate).fit(X, y, sample_weight=counts)
    except ah.ToleranceError:
        assert alpha / counts.max() / examples < 1e-12
        return
    kept = counts > 0
    centre = X[kept].mean(0)
    wanted = predicted(X[kept] - centre, y[kept], query - centre, alpha, rate, counts[kept])
    if model.certificate_ is not None:
        assert np.abs(model.predict(query) - wanted).max() <= model.certificate_.bound
    without = ic.KernelRidge(alpha, gamma=rate).fit(X[kept], y[kept], sample_weight=counts[kept])
    assert (without.predict(query) == model.predict(query)).all()


def test_one_weight_for_all_is_a_smaller_penalty():
    X, y = load_diabetes(return_X_y=True)
    for made, theirs in (
        (ic.KernelRidge(0.5, gamma=5.0), KernelRidge(alpha=0.5, kernel="rbf", gamma=5.0)),
        (ic.Ridge(0.5), Ridge(0.5)),
    ):
        for weight in (3.0, np.full(100, 3.0)):
            mine = made.fit(X[:100], y[:100], sample_weight=weight).predict(X[100:110])
            assert np.abs(mine - theirs.fit(X[:100], y[:100], sample_weight=weight).predict(X[100:110])).max() < 1e-7


@pytest.mark.parametrize("alpha", [1e-2, 1e-6, 1e-8])
def test_a_small_penalty_takes_few_steps_and_says_what_it_knows(alpha):
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:150], y[:150]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        wide, narrow = ic.KernelRidge(alpha).fit(X, y), ic.KernelRidge(alpha, gamma=500.0).fit(X, y)
    assert isinstance(wide.network_, KernelInverseNetwork)
    assert narrow.certificate_.bound < 1e-3
    assert wide.certificate_ is None or wide.certificate_.bound < y.max()
    theirs = KernelRidge(alpha=alpha, kernel="rbf", gamma=500.0).fit(X, y)
    assert np.abs(narrow.predict(X) - theirs.predict(X)).max() <= narrow.certificate_.bound + 1e-7


def test_a_bound_that_says_nothing_is_none_and_says_what_to_do():
    X, _ = load_diabetes(return_X_y=True)
    model = ic.KernelRidge(1e-9).fit(X[:150] / 50, np.random.default_rng(0).standard_normal(150))
    assert model.certificate_ is None
    assert "increase alpha" in model.certificate_missing_


def test_a_network_whose_bound_says_nothing_is_called_trivial():
    assert ic.kernel_ridge(1, 0.05, 1e-9, 10, examples=10**6).certificate.level == "trivial"
    small = ic.kernel_ridge(1, 1.0, 0.1, examples=10)
    assert small.certificate.level == "proved"
    assert small.certificate.bound < small._apart()


def test_the_inverse_is_the_same_in_every_form_and_leaves_out_what_is_masked():
    draw = torch.Generator().manual_seed(0)
    X, query = (torch.randn(n, 2, generator=draw, dtype=torch.float64) for n in (6, 3))
    y = torch.randn(6, generator=draw, dtype=torch.float64)
    model = KernelInverseNetwork(2, 6, 1.0, 1e-4, 1e-4)
    mask = torch.tensor([True, True, False, True, True, True])
    for prompt in ((X, y, query), (X, y, query, mask), (X[:3], y[:3], query)):
        wanted = model.exact(*prompt)
        assert (model(*prompt) - wanted).abs().max() < 1e-8
        assert (model.literal()(*prompt) - wanted).abs().max() < 1e-8
    assert (model.as_self_attention(6)(X, y, query[:1]) - model(X, y, query[:1])).abs().max() < 1e-8
    assert ah.walk(model, X, y, query).softmax > 20


@pytest.mark.parametrize("model", [ic.KernelRidge(1e-3, gamma=10.0), ic.NadarayaWatson(0.1)])
def test_the_domain_is_that_of_the_queries_in_the_units_of_the_data(model):
    x = np.linspace(0, 1, 60)[:, None]
    proof = model.fit(x + 1e6, 1e4 * np.sin(9 * x[:, 0])).certificate_
    ((low, high),) = proof.domain
    assert low < 1e6 - 0.4 < 1e6 + 1.4 < high
    assert f" on {interval((low, high))}, " in str(proof)
    assert "length" not in str(proof)
    network = model.network_
    model.predict([[low], [high]])
    assert model.network_ is network


def test_a_kernel_fit_is_refused_only_where_its_answer_is_not_known():
    X, y = load_breast_cancer(return_X_y=True)
    narrow = ic.NadarayaWatson(1e-3).fit(X, y)
    assert narrow.certificate_ is None
    assert "bandwidth=0.001" in narrow.certificate_missing_
    assert narrow.network_.certificate.level == "trivial"
    assert (narrow.predict(X + 1e-9) == y).all()
    sharp = ic.KernelRidge(0.1, gamma=1000.0).fit(X, y)
    assert sharp.certificate_ is None
    assert (
        np.abs(sharp.predict(X) - KernelRidge(alpha=0.1, kernel="rbf", gamma=1000.0).fit(X, y).predict(X)).max() < 1e-4
    )
    with pytest.raises(ah.ToleranceError, match=r"alpha=1e-12 is too small for 442 examples .* Increase alpha"):
        ic.KernelRidge(1e-12).fit(*load_diabetes(return_X_y=True))


@pytest.mark.parametrize("model", [ic.KernelRidge(), ic.NadarayaWatson()])
def test_what_a_kernel_fit_does_not_take_is_named(model):
    name = type(model).__name__
    with pytest.raises(ah.InputError, match=f"{name} predicts numbers"):
        model.fit([[0.0], [1.0]], ["a", "b"])


def test_weights_that_a_kernel_fit_does_not_take_are_named():
    data = [[0.0], [1.0]], [0.0, 1.0]
    with pytest.raises(ah.InputError, match=r"NadarayaWatson\.fit takes X and y, and was given sample_weight"):
        ic.NadarayaWatson().fit(*data, sample_weight=[1, 2])
    with pytest.raises(ah.InputError, match="Negative values"):
        ic.KernelRidge().fit(*data, sample_weight=[1, -2])
