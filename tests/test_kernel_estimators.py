"""Kernel estimators against kernels written out: answers by themselves and in company, lengths in every unit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah

pytest.importorskip("sklearn")
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge

ic = ah.in_context
pytestmark = pytest.mark.heavy


def smoothed(X, y, query, width):
    """Nadaraya-Watson regression, plainly."""
    apart = ((query[:, None] - X) ** 2).sum(-1) / (2 * width**2)
    weights = np.exp(apart.min(1, keepdims=True) - apart)
    return weights @ y / weights.sum(1)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 12), st.floats(0.3, 2), st.booleans())
def test_no_answer_in_the_domain_depends_on_what_else_is_asked(seed, power, width, ridge):
    draw = np.random.default_rng(seed)
    X, y, query = draw.standard_normal((30, 2)), draw.standard_normal(30), draw.standard_normal((5, 2))
    far = 10.0**power * draw.standard_normal((3, 2))
    if ridge:
        model = ic.KernelRidge(0.1, gamma=0.5 / width**2).fit(X, y)
        wanted = KernelRidge(alpha=0.1, kernel="rbf", gamma=0.5 / width**2).fit(X, y).predict(query)
    else:
        model, wanted = ic.NadarayaWatson(width).fit(X, y), smoothed(X, y, query, width)
    (low, high) = np.array(model.certificate_.domain).T
    inside = ((low <= query) & (query <= high)).all(1)
    found = model.predict(np.concatenate([far, query]))[3:]
    assert (np.abs(found - wanted)[inside] <= model.certificate_.bound).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(-1, 1), st.floats(-3, 3))
def test_kernels_measure_in_lengths_of_any_unit(seed, power, middle):
    draw = np.random.default_rng(seed)
    X, y, query = draw.standard_normal((12, 2)) + middle, draw.standard_normal(12), draw.standard_normal((5, 2))
    unit = 10.0 ** (150 * power)
    model = ic.KernelRidge(0.1, gamma=0.5 / unit**2).fit(unit * X, y)
    wanted = KernelRidge(alpha=0.1, kernel="rbf", gamma=0.5).fit(X, y).predict(query)
    assert np.abs(model.predict(unit * query) - wanted).max() < 1e-9
    assert model.certificate_.bound < 1e-8
    unit = 10.0 ** (300 * power)
    model = ic.NadarayaWatson(0.7 * unit).fit(unit * X, y)
    assert np.abs(model.predict(unit * query) - smoothed(X, y, query, 0.7)).max() < 1e-11
    assert model.certificate_.bound < 1e-9


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.floats(-2, 40))
def test_a_kernel_narrower_than_digits_of_the_data_is_refused_by_its_name(seed, power):
    draw = np.random.default_rng(seed)
    X, y = draw.standard_normal((6, 1)), draw.standard_normal(6)
    rate = 10.0**power
    for model, said in ((ic.KernelRidge(0.1, gamma=rate), "gamma="), (ic.NadarayaWatson(rate**-0.5), "bandwidth=")):
        try:
            found = model.fit(X, y).predict(X)
        except ah.ToleranceError as error:
            refused = str(error)
            assert power > 8
            assert said in refused
        else:
            theirs = KernelRidge(alpha=0.1, kernel="rbf", gamma=rate).fit(X, y).predict(X)
            wanted = theirs if said == "gamma=" else smoothed(X, y, X, rate**-0.5)
            assert np.abs(found - wanted).max() < 1e-2 * np.abs(y).max()


def test_a_query_beyond_all_lengths_is_refused_with_its_row():
    X, y = np.arange(4.0)[:, None], np.arange(4.0)
    with pytest.raises(ah.InputError, match=r"Row 1 of X is 1\.0e\+100 times 1\.0e\+00"):
        ic.NadarayaWatson().fit(X, y).predict([[0.0], [1e100]])
    with pytest.raises(ah.ToleranceError, match="bandwidth=1e-200 is so small beside the range of X"):
        ic.NadarayaWatson(1e-200).fit(X, y)


def test_a_bound_on_what_the_weights_leave_is_said_to_be_one():
    draw = np.random.default_rng(0)
    X, y = draw.standard_normal((30, 3)), draw.standard_normal(30)
    with pytest.warns(ConvergenceWarning, match="may leave an error of up to .* increase alpha=1e-10, or decrease gam"):
        model = ic.KernelRidge(1e-10, gamma=1e7).fit(X, y)
    assert np.abs(model.predict(X) - y).max() < 1e-6
