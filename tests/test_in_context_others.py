"""Truncated linear maps, Newton's method and a step of a two-layer network inside attention; derivatives by formula."""

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.expression.derivative import derivative
from anchorhead.expression.parse import parse
from anchorhead.expression.tensors import evaluate

ic = ah.in_context
D = torch.float64


def draw(*shape, seed=0, dtype=D):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D).clamp(-4, 4).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_truncated_linear_with_its_weights_in_the_prompt(dtype):
    model = ic.truncated_linear(features=3, low=-2, high=3, dtype=dtype)
    X, w, t = draw(50, 40, 3, dtype=dtype), draw(50, 3, seed=1, dtype=dtype), draw(50, seed=2, dtype=dtype)
    found = model(X, w, t)
    assert (found - model.exact(X, w, t)).abs().max() <= model.certificate.bound
    assert model.certificate.bound < (1e-9 if dtype == D else 1e-3)
    close = 1e-9 if dtype == D else 1e-5
    assert (model.literal()(X, w, t) - found).abs().max() < close
    few = X[:2, :4], w[:2], t[:2]
    matrices = model.as_self_attention(4)
    assert (matrices(*few) - found[:2, :4]).abs().max() < close
    assert ah.walk(model, *few).scores == 1
    assert ah.walk(matrices, *few).scores == 1
    assert model.keys <= 12


@settings(max_examples=40, deadline=None)
@given(st.floats(-6, 6), st.floats(-6, 6), st.floats(-20, 20), st.floats(-20, 20), st.floats(-50, 50))
def test_no_prompt_breaks_the_bound_of_a_truncated_map(x1, x2, w1, w2, t):
    model = ic.truncated_linear(features=2, low=-1.5, high=0.25)
    with mpmath.workprec(200):
        u = mpmath.mpf(x1) * w1 + mpmath.mpf(x2) * w2 + t
        expected = max(min(u, 0.25), -1.5)
        found = model(*(torch.tensor(v, dtype=D) for v in ([[x1, x2]], [w1, w2], t))).item()
        assert abs(found - expected) <= model.certificate.bound


def test_a_truncated_map_states_its_range_with_all_digits():
    model = ic.truncated_linear(features=1, low=0, high=1 + 2**-30)
    assert f"clip(w·x + t, 0, {1 + 2**-30!r})" in str(model.certificate)
    assert f"clip(w·x + t, 0, {1 + 2**-30!r})" in repr(model)


def test_truncated_maps_refuse_what_is_wrong():
    wrong = [({"low": 3}, "lower first"), ({"features": 0}, "positive integer"), ({"dtype": torch.int64}, "dtype"),
             ({"bounds": {"q": 1}}, "x, w and t")]  # fmt: skip
    for change, words in wrong:
        with pytest.raises(ah.InputError, match=words):
            ic.truncated_linear(**({"features": 2, "low": -1, "high": 1} | change))
    model = ic.truncated_linear(features=2, low=-1, high=1)
    with pytest.raises(ah.ShapeError, match="X must be"):
        model(draw(3, 3), draw(2), draw(1)[0])
    with pytest.raises(ah.ShapeError, match="one for each prompt"):
        model(draw(3, 2), draw(2), draw(3))
    with pytest.raises(ic.OutsideBoundsError, match="outside"):
        model(10 * torch.ones(3, 2, dtype=D), draw(2), draw(1)[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_newton_solves_least_squares(dtype):
    X, y = draw(3, 20, 4, dtype=dtype), draw(3, 20, seed=1, dtype=dtype)
    bounds = {"x": 4, "y": 4, "curvature": 4}
    model = ic.newton(features=4, examples=20, steps=12, l2=0.1, bounds=bounds, dtype=dtype)
    w = model(X, y)
    A = X.double().mT @ X.double() / 20 + 0.1 * torch.eye(4, dtype=D)
    solution = torch.linalg.solve(A, X.double().mT @ y.double().unsqueeze(-1) / 20).squeeze(-1)
    assert (w - solution).norm(dim=-1).max() < (1e-11 if dtype == D else 1e-5)
    assert (w - model.exact(X, y)).norm(dim=-1).max() <= model.certificate.bound
    assert model.to_optimum < 1e-20
    assert (model.literal()(X, y) - w).abs().max() < (1e-10 if dtype == D else 1e-5)
    mask = torch.ones(3, 20, dtype=torch.bool)
    mask[:, 15:] = False
    assert (model(X, y, mask) - model(X[:, :15], y[:, :15])).abs().max() < (1e-11 if dtype == D else 1e-5)


def test_heads_reach_as_far_as_the_networks_own_matrices_may():
    model = ic.newton(features=4, examples=20, steps=12, l2=0.1, bounds={"x": 4, "y": 4, "curvature": 4})
    assert model.inversion.inverse.reach >= 1.5 * max(model.inversion.sizes)
    assert model.inversion.moment.reach >= 1.5 * model.inversion.top
    step = ic.network_step(width=2, features=2, examples=4, learning_rate=0.1, bounds={"x": 1, "w": 0.5})
    assert step.residual.reach >= step.most
    with pytest.raises(ah.ToleranceError, match="wrong by as much as itself"):
        ic.newton(features=4, examples=10**7, steps=3, l2=1.0, dtype=torch.float32)


def test_newton_is_attention_and_says_what_it_cannot():
    small = ic.newton(features=2, examples=5, steps=2, l2=[0.1, 0.2])
    assert ah.walk(small, draw(5, 2), draw(5, seed=3)).softmax == 7
    with pytest.raises(ah.ToleranceError, match="inverse"):
        ic.newton(features=4, examples=20, steps=60, l2=1e-9)
    with pytest.raises(ic.OutsideBoundsError, match="curvature"):
        ic.newton(features=2, examples=5, steps=2, l2=0.1, bounds={"curvature": 1.0})(
            3 * torch.ones(5, 2, dtype=D), draw(5)
        )


@pytest.mark.parametrize("activation", ["tanh(u)", "softplus(u)"])
def test_a_step_of_a_two_layer_network(activation):
    model = ic.network_step(activation, width=5, features=3, examples=10, learning_rate=0.1,
                            bounds={"x": 2, "w": 0.5})  # fmt: skip
    X, y = draw(2, 10, 3).clamp(-2, 2), draw(2, 10, seed=1)
    W, a = draw(2, 5, 3, seed=2).clamp(-0.5, 0.5), draw(2, 5, seed=3).clamp(-2, 2)
    free = [v.clone().requires_grad_() for v in (W, a)]
    phi = torch.tanh if activation == "tanh(u)" else torch.nn.functional.softplus
    loss = ((phi(X @ free[0].mT) @ free[1].unsqueeze(-1)).squeeze(-1) - y).square() / 2
    loss.mean(-1).sum().backward()
    found = model(X, y, W, a)
    assert (found.W - (W - 0.1 * free[0].grad)).abs().max() <= model.certificate.bound
    assert (found.a - (a - 0.1 * free[1].grad)).abs().max() <= model.certificate.bound
    assert model.certificate.bound < 1e-6
    literal = model.literal()
    assert (literal(X, y, W, a)[..., :-1] - found.W).abs().max() < 1e-10
    assert ah.walk(literal, X, y, W, a).softmax == 6


def test_network_steps_refuse_what_is_wrong():
    model = ic.network_step(width=2, features=3, examples=4, learning_rate=0.1, bounds={"x": 4, "w": 0.25})
    with pytest.raises(ah.ShapeError, match="W must be"):
        model(draw(4, 3), draw(4), draw(3, 2), draw(2))
    with pytest.raises(ah.InputError, match="must be a torch tensor"):
        model(draw(4, 3), draw(4), [[1.0]], draw(2))
    with pytest.raises(ah.ShapeError, match="one for each prompt"):
        model(draw(4, 3), draw(4), draw(7, 2, 3), draw(2))
    with pytest.raises(ic.OutsideBoundsError):
        model(draw(4, 3), draw(4), 5 * torch.ones(2, 3, dtype=D), draw(2))
    with pytest.raises(ah.InputError, match="x, y, w and a"):
        ic.network_step(width=2, features=3, examples=4, learning_rate=0.1, bounds={"q": 1})


FUNCTIONS = [
    "exp(x)", "expm1(x)", "log(2 + x)", "log1p(x)", "sin(3*x)", "cos(x)", "tan(x)", "asin(x/2)", "acos(x/2)", "atan(x)",
    "sinh(x)", "cosh(x)", "tanh(2*x)", "asinh(x)", "acosh(2 + x)", "atanh(x/2)", "erf(x)", "erfc(x)", "sigmoid(x)",
    "softplus(3*x)", "gelu(x)", "mish(x)", "silu(x)", "(1 + x**2)**0.5", "x**3/(2 + x)", "log(cosh(x))",
    "-x*exp(-x**2)",
]  # fmt: skip


@pytest.mark.parametrize("formula", FUNCTIONS)
def test_derivatives_agree_with_torch(formula):
    x = torch.linspace(-0.9, 0.9, 41, dtype=D, requires_grad=True)
    expression = parse(formula, ("x",))
    value = evaluate(expression, {"x": x})
    (value[0] if isinstance(value, list | tuple) else value).sum().backward()
    slope = type(expression)((derivative(expression.outputs[0], "x"),), ("x",))
    found = evaluate(slope, {"x": x.detach()})
    assert torch.allclose((found[0] if isinstance(found, list | tuple) else found).expand_as(x), x.grad, atol=1e-12)


def test_derivatives_of_kinks_are_refused():
    with pytest.raises(ah.ExpressionError, match="kink"):
        derivative(parse("exp(relu(x))", ("x",)).outputs[0], "x")


@pytest.mark.parametrize("text", ["relu(1 - y*s)**2", "relu(s - y)**3", "abs(s - y)**3", "min(s, y - y)**2"])
def test_powers_of_kinks_have_derivatives_that_do_not_jump(text):
    s = torch.linspace(-3, 3, 601, dtype=torch.float64)
    f = parse(text, ("s", "y")).outputs[0]
    for y in (torch.ones_like(s), -torch.ones_like(s)):
        value = lambda s, y=y: evaluate(f, {"s": s, "y": y})
        wanted = (value(s + 1e-6) - value(s - 1e-6)) / 2e-6
        assert (ah.in_context.Loss.of(text).slope(s, y) - wanted).abs().max() < 1e-5


def test_a_kink_is_named_as_it_was_written():
    with pytest.raises(ah.ExpressionError, match=r"^abs\(s - y\) has a kink"):
        ah.in_context.Loss.of("abs(s-y)")
