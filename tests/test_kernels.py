"""Kernel methods in the prompt: against scikit-learn and mpmath, within their bounds, in every form and for every n."""

import copy
import warnings

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.in_context.kernel_ridge import Rates, coefficients_for

ic = ah.in_context
D = torch.float64
SMALL = {"x": 1.0, "query": 1.0, "y": 2.0}
KINDS = {
    "regression": lambda **more: ic.kernel_regression(2, 0.4, **{"bounds": SMALL} | more),
    "ridge": lambda **more: ic.kernel_ridge(2, 0.5, 0.05, **{"bounds": SMALL} | more),
    "nearest": lambda **more: ic.nearest_neighbour(2, 5e-4, **{"bounds": SMALL} | more),
}
EACH = pytest.mark.parametrize("kind", KINDS)


def uniform(*shape, seed=0):
    return 2 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=D) - 1


def problem(n, m=20, features=2, seed=0):
    X = uniform(n, features, seed=seed)
    return X, torch.sin(3 * X[:, 0]) + 0.5 * uniform(n, seed=seed + 1), uniform(m, features, seed=seed + 2)


@pytest.mark.parametrize("n", [5, 50, 800])
def test_ridge_is_scikit_learns_for_every_length_with_the_same_weights(n):
    ridge = pytest.importorskip("sklearn.kernel_ridge")
    model = ic.kernel_ridge(2, 0.5, 0.01, bounds={"x": 1, "query": 1, "y": 1.5})
    assert model.certificate.level == "proved"
    assert model.certificate.bound < 1e-9
    X, y, query = problem(n, 100)
    theirs = ridge.KernelRidge(alpha=0.01 * n, kernel="rbf", gamma=2.0).fit(X.numpy(), y.numpy())
    error = np.abs(model(X, y, query).numpy() - theirs.predict(query.numpy())).max()
    assert error <= model.certificate.bound


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.floats(0.05, 3), st.floats(1e-3, 2), st.integers(0, 10**6), st.booleans())
def test_no_prompt_breaks_the_bound_of_ridge(n, length, l2, seed, repeated):
    model = ic.kernel_ridge(2, length, l2, bounds=SMALL, examples=10)
    X, y, query = problem(n, 2, seed=seed)
    if repeated:
        X, y = X[:1].expand(n, 2), 2 * y.sign()
    found = model(X, y, query)
    with mpmath.workdps(40):

        def kernel(a, b):
            square = sum((mpmath.mpf(u) - mpmath.mpf(v)) ** 2 for u, v in zip(a.tolist(), b.tolist(), strict=True))
            return mpmath.exp(-square / (2 * mpmath.mpf(length) ** 2))

        K = mpmath.matrix(n)
        for i in range(n):
            for j in range(n):
                K[i, j] = kernel(X[i], X[j]) + (n * mpmath.mpf(l2) if i == j else 0)
        weights = mpmath.lu_solve(K, mpmath.matrix(y.tolist()))
        for q, value in zip(query, found.tolist(), strict=True):
            exact = sum(kernel(q, X[j]) * weights[j] for j in range(n))
            assert abs(value - exact) <= model.certificate.bound


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.floats(0.02, 5), st.integers(0, 10**6), st.sampled_from([D, torch.float32]))
def test_no_prompt_breaks_the_bound_of_regression(n, width, seed, dtype):
    model = ic.kernel_regression(2, width, bounds=SMALL, examples=10, dtype=dtype)
    X, y, query = (v.to(dtype) for v in problem(n, 3, seed=seed))
    found = model(X, y, query)
    with mpmath.workdps(40):
        for q, value in zip(query.double().tolist(), found.tolist(), strict=True):
            squares = [sum((mpmath.mpf(u) - v) ** 2 for u, v in zip(q, x, strict=True)) for x in X.double().tolist()]
            weights = [mpmath.exp(-s / (2 * mpmath.mpf(width) ** 2)) for s in squares]
            exact = sum(w * v for w, v in zip(weights, y.double().tolist(), strict=True)) / sum(weights)
            assert abs(value - exact) <= model.certificate.bound


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.integers(0, 10**6))
def test_the_nearest_neighbour_is_found_or_the_query_is_too_close_to_a_tie(n, seed):
    model = ic.nearest_neighbour(2, 1e-3, bounds=SMALL, examples=200)
    X, y, query = problem(n, 4, seed=seed)
    squares = ((query[:, None] - X) ** 2).sum(-1)
    gaps = squares.sort(-1).values[:, :2].diff()
    if n > 1 and gaps.min() < 1e-3:
        with pytest.raises(ic.OutsideBoundsError, match="margin"):
            model(X, y, query)
    else:
        assert (model(X, y, query) - y[squares.argmin(-1)]).abs().max() <= model.certificate.bound


def test_neighbours_with_one_label_may_be_tied():
    model = ic.nearest_neighbour(1, 0.5, bounds=SMALL)
    X, y = torch.tensor([[-0.5], [0.5], [1.0]], dtype=D), torch.tensor([1.5, 1.5, -1.0], dtype=D)
    assert model(X, y, torch.zeros(1, 1, dtype=D)).item() == pytest.approx(1.5, abs=model.certificate.bound)


@settings(max_examples=30, deadline=None)
@given(st.floats(-8, 1))
def test_the_iterations_polynomials_stay_below_their_bounds(power):
    """Of `kernel_ridge.py`: |e_t|, the size of b, and what a step commits, by running the recursion itself."""
    l2 = 10.0**power
    rate, momentum = coefficients_for(l2)
    rates = Rates.of(rate, momentum, l2)
    s = l2 + np.concatenate([np.linspace(0, 1, 4001), np.geomspace(1e-12, 1, 2000)])
    steps = 300
    growth = float(rates.growth(steps))
    error, before = 1 - rate * s / 2, np.ones_like(s)
    response, last = np.ones_like(s), np.zeros_like(s)
    plain, seen = np.zeros_like(s), np.zeros_like(s)
    for t in range(1, steps):
        assert np.abs(error).max() <= float(rates.shrunk(t)) * (1 + 1e-6) + 1e-9
        assert np.abs((1 - error) / s).max() <= growth * (1 + 1e-6)
        plain, seen = plain + np.abs(response), seen + np.sqrt(s - l2) * np.abs(response)
        error, before = (1 + momentum - rate * s) * error - momentum * before, error
        response, last = (1 + momentum - rate * s) * response - momentum * last, response
    assert plain.max() <= float(rates.spread()[0]) * (1 + 1e-6)
    assert seen.max() <= float(rates.spread()[1]) * (1 + 1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.floats(0, 5), st.integers(0, 10**6))
def test_scores_that_move_by_delta_move_a_head_by_the_tanh_of_its_half(keys, delta, seed):
    draw = np.random.default_rng(seed)
    scores, values = draw.normal(size=keys) * 3, draw.normal(size=keys)
    moved = scores + delta * draw.choice([-1, 1], size=keys)

    def head(s):
        weights = np.exp(s - s.max())
        return weights @ values / weights.sum()

    assert abs(head(moved) - head(scores)) <= np.ptp(values) * np.tanh(delta / 2) + 1e-12


@EACH
def test_every_form_is_the_same_network(kind):
    model = KINDS[kind]() if kind != "ridge" else ic.kernel_ridge(2, 0.5, 0.3, 6, bounds=SMALL)
    X, y, query = problem(4, 1)
    found = model(X, y, query)
    assert (model.literal()(X, y, query) - found).abs().max() < 1e-12
    assert (model.as_self_attention(4)(X, y, query) - found).abs().max() < 1e-12
    for form in (model, model.as_self_attention(4)):
        assert ah.walk(form, X, y, query).softmax == len(model.attention(X, y, query))
    assert all(torch.allclose(w.sum(-1), w.new_ones(())) for w in model.attention(X, y, query))
    assert model.resources.layers == (2 if kind != "ridge" else 8)


@EACH
def test_single_precision_has_its_own_certificate(kind):
    model = KINDS[kind](dtype=torch.float32, examples=50)
    X, y, query = (v.float() for v in problem(40, 5))
    found = model(X, y, query)
    assert found.dtype == torch.float32
    assert (found.double() - model.exact(X, y, query)).abs().max() <= model.certificate.bound
    assert (model.literal()(X, y, query) - found).abs().max() <= model.certificate.bound
    assert ah.walk(KINDS[kind](), *(v.double()[:3] for v in (X, y, query))).softmax >= 2


@EACH
def test_masks_batches_and_single_prompts_agree(kind):
    model = KINDS[kind]()
    X, y, query = problem(30, 3)
    mask = torch.arange(30) % 3 != 0
    found = model(X, y, query, mask)
    assert (found - model(X[mask], y[mask], query)).abs().max() < 1e-12
    assert (found - model.exact(X, y, query, mask=mask)).abs().max() <= model.certificate.bound
    garbage = torch.where(mask[:, None], X, torch.nan), torch.where(mask, y, torch.inf)
    assert torch.equal(model(*garbage, query, mask), found)
    both = model(torch.stack([X, X.flip(0)]), torch.stack([y, y.flip(0)]), query)
    assert both.shape == (2, 3)
    assert (both[0] - model(X, y, query)).abs().max() < 1e-12


@EACH
def test_the_certificate_is_of_these_numbers(kind):
    model = KINDS[kind]()
    assert model.certificate.level == "proved"
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.scale.mul_(1.0001)
    assert changed.certificate.level == "unproved"


def test_longer_prompts_cost_only_rounding():
    short, long = (ic.kernel_regression(2, 0.4, bounds=SMALL, examples=n).certificate for n in (10, 10**6))
    assert short.approximation == long.approximation
    assert short.rounding < long.rounding < 1e-8


def test_steps_are_chosen_for_what_the_iteration_may_leave():
    for l2 in (0.5, 0.01):
        model = ic.kernel_ridge(1, 1.0, l2, bounds=SMALL)
        X, y, query = problem(200, 10, 1)
        few = ic.kernel_ridge(1, 1.0, l2, model.steps // 3, bounds=SMALL)
        assert (few(X, y, query) - few.exact(X, y, query)).abs().max() <= few.certificate.bound
        assert few.certificate.bound > 100 * model.certificate.bound


@EACH
def test_bad_prompts_are_refused_with_a_sentence(kind):
    model = KINDS[kind](examples=30)
    X, y, query = problem(10, 2)
    cases = [
        ((X[:0], y[:0], query), "no entries"),
        ((X, y[:3], query), "shape of X"),
        ((X, y, query[:, :1]), "query must be"),
        ((X, y, None), "query must be"),
        ((X, y, query, torch.zeros(10, dtype=torch.bool)), "without examples"),
        ((X, y, query, torch.ones(10)), "boolean"),
        ((torch.where(X > 0.5, torch.nan, X), y, query), "not finite"),
        ((X, y, query * torch.nan), "not finite"),
        ((2 * X, y, query), "outside the declared"),
        ((X, y, 3 * query), "query"),
        ((X.repeat(4, 1), y.repeat(4), query), "examples=40"),
        ((X.float(), y, query), "float"),
    ]
    for prompt, words in cases:
        with pytest.raises(ah.InputError, match=words):
            model(*prompt)


def test_bad_arguments_are_refused_with_a_sentence():
    for call, words in [
        (lambda: ic.kernel_regression(0, 1.0), "positive integer"),
        (lambda: ic.kernel_regression(2, 0.0), "bandwidth"),
        (lambda: ic.kernel_regression(2, 1e-200), "hold"),
        (lambda: ic.kernel_ridge(2, 1.0, 0.0), "l2"),
        (lambda: ic.kernel_ridge(2, 1.0, 0.1, steps=0), "steps"),
        (lambda: ic.kernel_ridge(2, 1.0, 0.1, bounds={"w": 1}), "x, query and y"),
        (lambda: ic.nearest_neighbour(2, -1), "margin"),
        (lambda: ic.nearest_neighbour(2, 1, selection_error=2), "selection_error"),
    ]:
        with pytest.raises(ah.InputError, match=words):
            call()
    for call in (lambda: ic.kernel_ridge(2, 1.0, 1e-14), lambda: ic.kernel_ridge(2, 0.1, 1e-4, dtype=torch.float32),
                 lambda: ic.nearest_neighbour(2, 1e-13)):  # fmt: skip
        with pytest.raises(ah.ToleranceError):
            call()


def test_estimators_predict_as_scikit_learn_does():
    ridge = pytest.importorskip("sklearn.kernel_ridge")
    X, y, query = (v.numpy() for v in problem(60, 15, 3))
    X, y, query = 5 * X + 100, 1e3 * y, 20 * query + 100
    for alpha, rate in ((1.0, None), (0.1, 0.02)):
        ours = ic.KernelRidge(alpha, gamma=rate).fit(X, y)
        theirs = ridge.KernelRidge(alpha=alpha, kernel="rbf", gamma=rate).fit(X, y)
        assert np.abs(ours.predict(X) - theirs.predict(X)).max() <= ours.certificate_.bound + 1e-6
        assert np.abs(ours.predict(query) - theirs.predict(query)).max() <= 1e-6
    found = ic.NadarayaWatson(2.0).fit(X, y).predict(query)
    weights = np.exp(-((query[:, None] - X) ** 2).sum(-1) / 8)
    assert np.allclose(found, weights @ y / weights.sum(-1), rtol=1e-9)
    with pytest.raises(ValueError, match="alpha"), warnings.catch_warnings():
        ic.KernelRidge(0.0).fit(X, y)
