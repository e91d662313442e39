"""Learning inside one forward pass: iterates against plain NumPy, the proved deviation, the literal forms, refusals."""

import math
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.in_context.heads import label_head
from anchorhead.in_context.losses import read_loss
from anchorhead.in_context.paper import with_paper_heads
from anchorhead.in_context.stability import Spread, deviations

ic = ah.in_context
D = torch.float64


def data(loss, n=64, d=8, seed=0):
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((n, d)), rng.standard_normal(d)
    noisy = X @ w + 0.3 * rng.standard_normal(n)
    y = {"logistic": (noisy > 0).astype(float), "hinge": np.sign(noisy), "poisson": rng.poisson(2.0, n).astype(float)}
    return X, y.get(loss, noisy)


SLOPES = {
    "squared": lambda s, y: s - y,
    "logistic": lambda s, y: 1 / (1 + np.exp(-s)) - y,
    "huber": lambda s, y: np.clip(s - y, -1.35, 1.35),
    "poisson": lambda s, y: np.exp(s) - y,
    "quantile": lambda s, y: 1 / (1 + np.exp(-np.clip((s - y) / 0.05, -700, 700))) - 0.5,
    "hinge": lambda s, y: -y / (1 + np.exp(np.clip(-(1 - y * s) / 0.05, -700, 700))),
}


def numpy_iterates(loss, X, y, steps, rate, l2=0.0, l1=0.0, momentum=0.0):
    w = before = np.zeros(X.shape[1])
    kept = [w]
    for _ in range(steps):
        v = w - rate * (X.T @ SLOPES[loss](X @ w, y) / len(y) + l2 * w) + momentum * (w - before)
        before, w = w, np.sign(v) * np.maximum(np.abs(v) - rate * l1, 0)
        kept.append(w)
    return np.stack(kept)


def t(array, dtype=D):
    return torch.tensor(array, dtype=dtype)


@pytest.mark.heavy
@pytest.mark.parametrize(("loss", "rate"), [("squared", 0.1), ("logistic", 0.5), ("huber", 0.1), ("squared", 1 / 300)])
def test_a_thousand_steps(loss, rate):
    X, y = data(loss)
    model = ic.gradient_descent(loss, features=8, examples=64, steps=1000, learning_rate=rate)
    found, expected = model.trajectory(t(X), t(y)).numpy(), numpy_iterates(loss, X, y, 1000, rate)
    apart = np.linalg.norm(found - expected, axis=-1)
    assert apart.max() <= 1e-9
    assert (apart <= np.array(model.deviation_bounds) + 1e-15).all()
    assert model.certificate.bound == pytest.approx(model.deviation_bounds[-1])
    assert model.certificate.bound < 1e-6
    short = ic.gradient_descent(loss, features=8, examples=64, steps=1000, learning_rate=rate, dtype=torch.float32)
    assert np.abs(short(t(X, torch.float32), t(y, torch.float32)).numpy() - expected[-1]).max() <= 1e-4


def test_the_bound_grows_linearly_for_convex_losses():
    few, many = (
        ic.gradient_descent("squared", features=3, examples=9, steps=k, learning_rate=0.01) for k in (10, 1000)
    )
    assert many.certificate.bound / few.certificate.bound == pytest.approx(100, rel=1e-6)
    assert many.deviation_bounds[10] == pytest.approx(few.certificate.bound)


CASES = [
    ("poisson", {"bounds": {"x": 4, "y": 20, "w": 1, "s": 2}, "learning_rate": 0.02}),
    ("quantile", {"learning_rate": 0.02}),
    ("hinge", {"learning_rate": 0.02}),
    ("squared", {"l1": 0.1, "l2": 0.05}),
    ("squared", {"momentum": 0.8}),
    ("huber", {"l1": 0.05, "momentum": 0.5}),
]


@pytest.mark.parametrize(("loss", "settings_"), CASES)
def test_losses_and_penalties_against_numpy(loss, settings_):
    X, y = data(loss, 20, 3)
    X = np.clip(X, -4, 4)
    given_ = {"learning_rate": 0.1} | settings_
    model = ic.gradient_descent(loss, features=3, examples=20, steps=40, **given_)
    plain = {k: v for k, v in given_.items() if k in ("l1", "l2", "momentum")}
    expected = numpy_iterates(loss, X, y, 40, given_["learning_rate"], **plain)
    apart = np.linalg.norm(model.trajectory(t(X), t(y)).numpy() - expected, axis=-1)
    assert (apart <= np.array(model.deviation_bounds) + 1e-14).all()
    assert apart.max() < 1e-9
    assert np.allclose(model.exact(t(X), t(y)).numpy(), expected, atol=1e-13)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_prompt_in_the_bounds_breaks_the_bound(draw):
    """Adversarial prompts: entries anywhere in the bounds, small learning rate, so that every prompt is allowed."""
    loss = draw.draw(st.sampled_from(["squared", "huber", "logistic"]))
    d, n = draw.draw(st.integers(1, 3)), draw.draw(st.integers(1, 5))
    entry = st.floats(-2, 2)
    X = np.array(draw.draw(st.lists(st.lists(entry, min_size=d, max_size=d), min_size=n, max_size=n)))
    label = st.sampled_from([0.0, 1.0]) if loss == "logistic" else st.floats(-5, 5)
    y = np.array(draw.draw(st.lists(label, min_size=n, max_size=n)))
    model = ic.gradient_descent(loss, features=d, examples=8, steps=30, learning_rate=0.1,
                                bounds={"x": 2, "y": 5, "w": 64})  # fmt: skip
    try:
        found = model.trajectory(t(X), t(y)).numpy()
    except ic.OutsideBoundsError:
        return
    apart = np.linalg.norm(found - numpy_iterates(loss, X, y, 30, 0.1), axis=-1)
    assert (apart <= np.array(model.deviation_bounds) + 1e-14).all()


FORMULAS = [
    ("log(cosh(s - y))", lambda s, y: np.tanh(s - y), {}),
    ("sqrt(1 + (s - y)**2)", lambda s, y: (s - y) / np.sqrt(1 + (s - y) ** 2), {"bounds": {"x": 3, "y": 2, "w": 0.5}}),
    ("y*exp(-s) + s", lambda s, y: 1 - y * np.exp(-s), {"bounds": {"x": 3, "y": 6, "w": 0.5}, "learning_rate": 0.01}),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("formula", "slope", "settings_"), FORMULAS)
def test_any_formula_of_prediction_and_label(formula, slope, settings_, monkeypatch):
    monkeypatch.setitem(SLOPES, formula, slope)
    rng = np.random.default_rng(1)
    X, y = np.clip(rng.standard_normal((6, 2)), -3, 3), rng.uniform(0, 2, 6)
    given_ = {"learning_rate": 0.1, "bounds": {"x": 3, "y": 6, "w": 2}} | settings_
    model = ic.gradient_descent(formula, features=2, examples=6, steps=20, **given_)
    expected = numpy_iterates(formula, X, y, 20, given_["learning_rate"])
    apart = np.linalg.norm(model.trajectory(t(X), t(y)).numpy() - expected, axis=-1)
    assert (apart <= np.array(model.deviation_bounds) + 1e-14).all()
    assert apart.max() < 1e-7


@pytest.mark.heavy
def test_a_formula_in_which_labels_multiply_predictions_is_a_head_over_a_grid():
    model = ic.gradient_descent("log(1 + exp(-y*s))", features=2, examples=4, steps=5, learning_rate=0.1,
                                bounds={"x": 1, "y": 1, "w": 1})  # fmt: skip
    assert model.gradient.terms[0].line is None
    X = t([[0.5, -1], [1, 1], [-0.3, 0.2], [0.9, -0.4]])
    y = t([1.0, -1, 1, -1])
    assert (model(X, y) - model.exact(X, y)[-1]).norm() <= model.certificate.bound
    assert (model(X, y) - model.literal()(X, y)).abs().max() < 1e-12


def test_a_grid_that_labels_and_predictions_are_too_wide_for_is_refused_with_the_way_out():
    with pytest.raises(ah.InputError, match=r"Loss\.of\(.*labels='signs'.*a grid of 32 x 32 keys misses it "):
        ic.gradient_descent("log(1 + exp(-y*s))", features=3, examples=40, steps=60, learning_rate=0.3)
    for formula in ("relu(1 - y*s)**2", "1 - exp(-(s - y)**2/2)"):
        with pytest.raises(ah.InputError, match="Declare smaller bounds") as refusal:
            ic.gradient_descent(formula, features=3, examples=40, steps=30, learning_rate=0.05)
        assert not re.search("tol=|larger tol", str(refusal.value))


def test_attention_is_listed_in_the_order_of_the_steps():
    loss = ic.Loss.of("log(1 + exp(-y*s))", "signs")
    model = ic.gradient_descent(loss, features=2, examples=4, steps=3, learning_rate=0.1, l1=0.1)
    X, y = t([[0.5, -1], [1, 1], [-0.3, 0.2], [0.9, -0.4]]), t([1.0, -1, 1, -1])
    found, (first, second) = model.attention(X, y), model.gradient.terms
    assert [tuple(w.shape) for w in found] == [(4, 2), *[(4, 2), (4, 2), (2, 3)] * 3]
    w = model.exact(X, y)
    for step in range(3):
        for j, term in enumerate((first, second)):
            keys, u = term.read_keys(), term.line[0] * (X @ w[step])
            expected = (u.unsqueeze(-1) * keys.slopes[0] + keys.levels).softmax(-1)
            assert found[1 + 3 * step + j].allclose(expected, atol=1e-9)


@pytest.mark.parametrize("formula", ["sqrt(1 + (s - y)**2)", "log(cosh(s - y))"])
def test_a_convex_loss_is_seen_to_be_convex(formula):
    model = ic.gradient_descent(formula, features=3, examples=40, steps=60, learning_rate=0.3,
                                bounds={"x": 4, "y": 8, "w": 6, "s": 12})  # fmt: skip
    assert model.certificate.level == "proved"
    assert model.proof.slope[0] > -1e-6


def test_a_loss_that_is_bent_downwards_is_not_taken_for_convex():
    model = ic.gradient_descent("sqrt(1 + (s - y)**2) - 0.001*s*s", features=2, examples=4, steps=5, learning_rate=0.1,
                                bounds={"x": 4, "y": 8, "w": 6, "s": 12})  # fmt: skip
    assert model.proof.slope[0] < -0.0015


@pytest.mark.parametrize("size", [7.50032, 37.0466, 123456.7, 6.0001])
def test_bounds_that_an_error_advises_hold_the_data(size):
    common = {"features": 2, "examples": 4, "steps": 3, "learning_rate": 0.1}
    X, y = torch.ones(4, 2, dtype=D), torch.full((4,), size, dtype=D)
    with pytest.raises(ah.OutsideRangeError) as refused:
        ic.gradient_descent("squared", bounds={"y": 6}, **common)(X, y)
    advised = float(re.search(r"bounds=\{'y': ([^}]*)\}", str(refused.value))[1])
    ic.gradient_descent("squared", bounds={"y": advised, "w": 1e6}, **common)(X, y)


def test_a_loss_that_no_prediction_enters_is_refused_and_one_that_is_linear_is_not():
    common = {"features": 2, "examples": 4, "steps": 3, "learning_rate": 0.1}
    with pytest.raises(ah.InputError, match="The loss y does not depend on the prediction s"):
        ic.gradient_descent("y", **common)
    linear = ic.gradient_descent("s", **common)
    assert linear.resources.keys == 0
    assert linear(torch.ones(4, 2, dtype=D), torch.zeros(4, dtype=D)).allclose(t([-0.3, -0.3]))


@pytest.mark.parametrize(("labels", "formula"), [
    ("signs", "log(1 + exp(-y*s))"), ("signs", "(1 - y*s)**2"), ("signs", "exp(-(s*y)**2 + s*y)*y"),
    ("zero_one", "log(1 + exp(s)) - y*s*s/8"),
])  # fmt: skip
def test_labels_of_two_kinds_may_multiply_predictions_as_they_like(labels, formula):
    loss = ic.Loss.of(formula, labels)
    draw = torch.Generator().manual_seed(3)
    X = torch.randn(12, 2, generator=draw, dtype=D).clamp(-2, 2)
    y = (torch.rand(12, generator=draw, dtype=D) > 0.5).to(D)
    y = 2 * y - 1 if labels == "signs" else y
    model = ic.gradient_descent(loss, features=2, examples=12, steps=15, learning_rate=0.05,
                                bounds={"x": 2, "y": 1, "w": 2, "s": 3})  # fmt: skip
    plain, slope = torch.zeros(2, dtype=D), torch.func.grad(lambda s, v: _value(formula, s, v).sum())
    for _ in range(15):
        plain = plain - 0.05 * (slope(X @ plain, y).unsqueeze(-1) * X).mean(0)
    assert (model(X, y) - plain).norm() <= model.certificate.bound + 1e-14 < 1e-8
    assert (model.literal()(X, y) - plain).abs().max() < 1e-11
    s, (low, high) = torch.linspace(-3, 3, 999, dtype=D), model.proof.slope
    for label in y.unique():
        bent = torch.func.grad(lambda v: slope(v, label.expand_as(v)).sum())(s)  # noqa: B023
        assert low <= bent.min()
        assert bent.max() <= high


def _value(formula, s, y):
    return eval(formula, {"s": s, "y": y, "exp": torch.exp, "log": torch.log})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("loss", "extra"), [("squared", {"l1": 0.1, "momentum": 0.5}), ("logistic", {}), ("huber", {})]
)
def test_three_forms_are_one_network_of_attention_only(loss, extra, dtype):
    X, y = (t(a, dtype) for a in data(loss, 4, 2))
    model = ic.gradient_descent(loss, features=2, examples=4, steps=3, learning_rate=0.1, dtype=dtype, **extra)
    fast, close = model(X, y), 1e-11 if dtype == D else 1e-5
    assert (model.literal()(X, y) - fast).abs().max() < close
    matrices = model.as_self_attention()
    assert (matrices(X, y) - fast).abs().max() < close
    assert ah.walk(model, X, y).softmax >= 3
    assert ah.walk(matrices, X, y).softmax >= 3
    assert {"step.0.heads.0.W_Q", "step.0.heads.0.W_K", "step.0.heads.0.W_V"} <= set(matrices.matrices())
    with pytest.raises(ah.ShapeError, match="for 4 examples"):
        matrices(X[:3], y[:3])
    weights = model.literal().attention(X, y)
    assert weights[0].sum(-1).allclose(torch.ones(4, dtype=D))


def test_shorter_prompts_and_masks_give_the_mean_over_what_counts():
    X, y = (t(a) for a in data("squared", 10, 3))
    model = ic.gradient_descent("squared", features=3, examples=16, steps=25, learning_rate=0.1)
    mask = torch.tensor([True] * 6 + [False] * 4)
    assert (model(X[:6], y[:6]) - model(X, y, mask=mask)).abs().max() < 1e-13
    assert (model.literal()(X, y, None, mask) - model(X, y, mask=mask)).abs().max() < 1e-12
    broken = torch.where(mask.unsqueeze(-1), X, math.nan)
    assert torch.equal(model(broken, y, mask=mask), model(X, y, mask=mask))


def test_batches_and_starts():
    X, y = (t(a) for a in data("squared", 10, 3))
    model = ic.gradient_descent("squared", features=3, examples=10, steps=5, learning_rate=0.1)
    both = model(torch.stack([X, 2 * X]), torch.stack([y, y]))
    assert both.shape == (2, 3)
    assert (both[1] - model(2 * X, y)).abs().max() < 1e-13
    half = ic.gradient_descent("squared", features=3, examples=10, steps=2, learning_rate=0.1)
    rest = ic.gradient_descent("squared", features=3, examples=10, steps=3, learning_rate=0.1)
    assert (rest(X, y, w0=half(X, y)) - model(X, y)).abs().max() < 1e-12
    assert model.trajectory(X, y).shape == (6, 3)
    assert torch.equal(pickle.loads(pickle.dumps(model))(X, y), model(X, y))


def test_a_curve_that_is_zero_throughout_is_named_so_in_the_legend():
    found = ic.Convergence(torch.zeros(3), *torch.ones(3, 3))
    (axes,) = found.plot().axes
    assert [text.get_text() for text in axes.get_legend().get_texts()][:2] == ["measured: 0", "proved"]


def test_gradients_of_losses_have_differences_as_one_writes_them():
    assert ic.Loss.of("exp(s - 2*y)").gradient == "exp(s - 2*y)"
    assert ic.Loss.of("log(1 + exp(s - y)) - 3*s").gradient == "sigmoid(s - y) - 3"


def test_convergence_reports_every_step():
    X, y = (t(a) for a in data("squared", 30, 3))
    model = ic.gradient_descent("squared", features=3, examples=30, steps=300, learning_rate=0.3)
    report = model.convergence(X, y)
    solution = torch.linalg.lstsq(X, y).solution
    assert (report.measured <= report.proved).all()
    assert report.to_optimum[-1] < 1e-9
    assert report.to_optimum[0].item() == pytest.approx(solution.norm().item(), rel=1e-9)
    assert report.gradient_norm[-1] < 1e-9
    assert "measured deviation" in str(report)


def test_an_optimum_at_infinity_is_not_measured_to():
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(40, 3, generator=draw, dtype=torch.float64)
    labels = ((X @ t([1.0, 2, -1])) > 0).double()
    model = ic.gradient_descent("logistic", features=3, examples=40, steps=10, learning_rate=0.3)
    report = model.convergence(torch.stack([X, X]), torch.stack([labels, 0 * labels + torch.arange(40) % 2]))
    assert report.to_optimum[0].isnan().all()
    assert report.to_optimum[1].isfinite().all()
    assert "no optimum within 12,000 more plain steps" in str(report)
    assert any("none found" in said for said, _ in model.convergence(X, labels)._curves())


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
def test_the_papers_heads_with_as_many_keys_are_a_million_times_further_off(loss):
    X, y = (t(a) for a in data(loss))
    model = ic.gradient_descent(loss, features=8, examples=64, steps=100, learning_rate=0.1)
    paper = with_paper_heads(model)
    assert paper.keys == model.keys
    exact = model.exact(X, y)[-1]
    assert (paper(X, y) - exact).norm() >= 1e6 * (model(X, y) - exact).norm()


SMALL = {"features": 2, "examples": 4, "steps": 3, "learning_rate": 0.1}
GOOD = torch.ones(4, 2, dtype=D), torch.zeros(4, dtype=D)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m(GOOD[0] * math.nan, GOOD[1]), "not finite"),
        (lambda m: m(GOOD[0], GOOD[1] + math.inf), "takes finite numbers"),
        (lambda m: m(100 * GOOD[0], GOOD[1]), "outside the declared 6"),
        (lambda m: m(GOOD[0], GOOD[1] + 51), "outside the declared 50"),
        (lambda m: m(GOOD[0][:, :1], GOOD[1]), r"X must be \(..., examples, 2\)"),
        (lambda m: m(GOOD[0], GOOD[1][:2]), "y must have the shape"),
        (lambda m: m(torch.ones(5, 2, dtype=D), torch.zeros(5, dtype=D)), "takes 1 to 4"),
        (lambda m: m(GOOD[0].float(), GOOD[1]), "torch.float32 and the network"),
        (lambda m: m([[1.0]], GOOD[1]), "must be a torch tensor"),
        (lambda m: m(*GOOD, w0=torch.full((2,), 30.0, dtype=D)), "outside the declared 20"),
        (lambda m: m(*GOOD, w0=torch.zeros(3, dtype=D)), "w0 must be"),
        (lambda m: m(*GOOD, mask=torch.zeros(4, dtype=torch.bool)), "without examples"),
        (lambda m: m(*GOOD, mask=torch.ones(4)), "boolean"),
        (lambda m: m(*GOOD, mask=[True] * 4), "boolean"),
        (lambda m: m(*GOOD, w0=torch.zeros(3, 2, dtype=D)), "w0 must be"),
        (lambda m: m(torch.zeros(0, 4, 2, dtype=D), torch.zeros(0, 4, dtype=D)), "no entries"),
    ],
)
def test_bad_prompts_get_a_sentence(call, words):
    with pytest.raises(ah.AnchorheadError, match=words):
        call(ic.gradient_descent("squared", **SMALL))


def test_labels_outside_the_domain_of_the_loss():
    for loss, label, words in (
        ("logistic", 0.5, "0 or 1"),
        ("hinge", 0.0, "-1 or 1"),
        ("poisson", -1.0, "not negative"),
    ):
        bounds = {"s": 2.0} if loss == "poisson" else None
        model = ic.gradient_descent(loss, **(SMALL | {"learning_rate": 0.01}), bounds=bounds)
        with pytest.raises(ah.InputError, match=words):
            model(GOOD[0], torch.full((4,), label, dtype=D))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 10.0}, "too large for the declared bounds"),
        ({"learning_rate": 0.3, "bounds": {"curvature": 8.0}}, "too large for the declared bounds"),
        ({"learning_rate": 0}, "positive finite"),
        ({"learning_rate": math.nan}, "positive finite"),
        ({"steps": 0}, "positive integer"),
        ({"features": 2.5}, "positive integer"),
        ({"momentum": 1.0}, "below 1"),
        ({"l2": -1}, "not negative"),
        ({"l1": [1, 2, 3]}, "3 entries for 2"),
        ({"bounds": {"z": 1}}, "bounds has z"),
        ({"bounds": 5}, "must be a dictionary"),
        ({"bounds": {"x": 1e200}}, "positive finite"),
        ({"l2": "a"}, "one number"),
        ({"loss": "logistic", "bounds": {"y": 0.3}}, "leaves out the labels"),
        ({"bounds": {"x": -1}}, "positive finite"),
        ({"dtype": torch.float16}, "float64 or torch.float32"),
        ({"outside": "ignore"}, "refuse"),
        ({"loss": "nope"}, "no loss named"),
        ({"loss": "abs(s - y)"}, "kink"),
        ({"loss": "exp(s) - y*s"}, "smaller bounds"),
        ({"loss": 3}, "must be a name"),
    ],
)
def test_bad_algorithms_get_a_sentence(change, words):
    given_ = {"loss": "squared"} | SMALL | change
    with pytest.raises(ah.AnchorheadError, match=words):
        ic.gradient_descent(given_.pop("loss"), **given_)


def test_a_prompt_that_is_too_curved_for_the_learning_rate_is_refused():
    model = ic.gradient_descent("squared", **(SMALL | {"learning_rate": 0.5}))
    with pytest.raises(ic.OutsideBoundsError, match="learning rate that is"):
        model(5 * GOOD[0], GOOD[1])
    assert "largest eigenvalue" in " ".join(model.certificate.assumptions)
    assert "where the largest eigenvalue of X^T X/n is at most" in str(model.certificate)
    assert "where the largest eigenvalue" in model.certificate._repr_html_()


def test_iterates_that_leave_the_bounds_are_refused_with_the_step():
    model = ic.gradient_descent("squared", features=1, examples=1, steps=50, learning_rate=0.5, bounds={"w": 2.0})
    with pytest.raises(ic.OutsideBoundsError, match="At step 1 "):
        model(torch.ones(1, 1, dtype=D), torch.full((1,), 10.0, dtype=D))


def test_prompts_may_be_clipped_with_a_warning():
    model = ic.gradient_descent("squared", **(SMALL | {"learning_rate": 0.01}), outside="clip")
    with pytest.warns(ic.ClippedWarning, match="clipped to"):
        found = model(torch.full((4, 2), 6.5, dtype=D) * torch.tensor([1.0, 0.01], dtype=D), GOOD[1])
    assert torch.isfinite(found).all()


def test_momentum_on_a_quadratic_stays_polynomial_and_otherwise_is_said_to_grow():
    quadratic = deviations(1000, 1.0, Spread(0.1, 1.0, True), 1.0, 0.9)
    other = deviations(1000, 1.0, Spread(0.1, 1.0, False), 1.0, 0.9)
    assert quadratic[-1] < 1e4
    assert other[-1] > 1e100
    assert deviations(5, 1.0, Spread(0.5, 0.5, False), 1.0, 0.0)[-1] == pytest.approx(2 - 2 / 32)


def test_casts_leave_the_proved_numbers_alone():
    X, y = (t(a) for a in data("squared", 4, 2))
    model = ic.gradient_descent("squared", **SMALL, l1=0.01)
    expected = model(X, y)
    assert torch.equal(model.half()(X, y), expected)


def test_labels_of_two_kinds_are_multiplied_exactly():
    for name in ("logistic", "hinge"):
        head = label_head(read_loss(name).labels, 50.0)
        pair = torch.tensor([0.0, 1.0] if name == "logistic" else [-1.0, 1.0], dtype=D)
        assert (head(pair) - pair).abs().max() <= head.error < 1e-14


@pytest.mark.parametrize(
    ("loss", "said", "y"), [("logistic", "0 or 1", (0.0, 1.0)), ("poisson", "not negative", (-50.0, 50.0))]
)
def test_certificate_says_which_labels_a_prompt_may_have(loss, said, y):
    model = ah.in_context.gradient_descent(
        loss, features=2, examples=4, steps=3, learning_rate=1e-3, bounds={"x": 1, "y": 50, "w": 1}
    )
    assert dict(zip(model.certificate.variables, model.certificate.domain, strict=True))["y"] == y
    assert any("labels are" in text and said in text for text in model.certificate.assumptions)
