"""Functions that cannot be looked into: universal approximation, and certificates that say on what they rest."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah


def ridge(x, y):
    """Numbers only, so that torch cannot trace it; |gradient| <= sqrt(1.25² + 1) < 1.7 on the unit square."""
    return math.sin(x) * abs(y - 0.3) + max(x, y) / 4


def bowl(points):
    """NumPy only, three variables; its gradient has length at most 1."""
    p = np.asarray(points)
    return np.abs(np.linalg.norm(p - 0.4, axis=-1) - 0.3)[..., None]


def curve(x):
    """A batch of torch points to two outputs."""
    return torch.stack([torch.sin(x[..., 0] * x[..., 1]), x[..., 0].abs()], dim=-1)


CASES = {
    "numbers": (ridge, (0, 1), 1.7, {}),
    "numpy": (bowl, [(0, 1)] * 3, 1.0, {}),
    "torch": (curve, [(-1, 1), (0, 1)], 1.5, {}),
}


def samples(model, count=2000):
    draw = torch.Generator().manual_seed(0)
    low, high = torch.tensor(model.certificate.domain, dtype=torch.float64).T
    return low + torch.rand(count, len(low), generator=draw, dtype=torch.float64) * (high - low)


def exact(name, x):
    if name == "numbers":
        return torch.tensor([[ridge(*p)] for p in x.tolist()], dtype=torch.float64)
    return torch.as_tensor(CASES[name][0](x if name == "torch" else x.numpy()))


@pytest.mark.parametrize("method", ["grid", "two_layer"])
@pytest.mark.parametrize("name", CASES)
def test_measured_error_is_kept_and_called_measured(name, method, tmp_path):
    f, domain, _, extra = CASES[name]
    model = ah.compile(f, domain, tol=0.05, method=method, **extra)
    assert model.certificate.level == "measured"
    assert model.certificate.bound <= 0.05
    x = samples(model)
    assert (model(x) - exact(name, x)).abs().max() <= 1.2 * model.certificate.bound
    model.save(tmp_path / "file")
    assert torch.equal(ah.load(tmp_path / "file")(x), model(x))
    with pytest.raises(ah.VerificationError, match="measured"):
        ah.verify(tmp_path / "file")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "method", "tol"),
    [("numbers", "grid", 0.06), ("torch", "grid", 0.02), ("numbers", "two_layer", 0.02), ("numpy", "two_layer", 0.02)],
)
def test_conditional_bound_holds(name, method, tol):
    f, domain, lipschitz, extra = CASES[name]
    model = ah.compile(f, domain, tol=tol, method=method, lipschitz=lipschitz, **extra)
    certificate = model.certificate
    assert certificate.level == "conditional"
    assert certificate.bound <= tol
    assert "declared" in certificate.assumptions[0]
    assert certificate.condition == certificate.assumptions[0]
    assert certificate.condition in str(certificate)
    x = samples(model)
    assert (model(x) - exact(name, x)).abs().max() <= certificate.bound
    ah.walk(model.literal(), x[:3])


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "lipschitz"), [("numbers", 1.7), ("numpy", 1.0)])
def test_universality_levels_doubled_until_a_hundredth(name, lipschitz):
    """Two and three variables: the paper's network, and the bound that the declared constant implies at each size."""
    f = CASES[name][0]
    variables = {"numbers": 2, "numpy": 3}[name]
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(4000, 1, variables, generator=draw, dtype=torch.float64)

    def target(points):
        flat = points.reshape(-1, variables)
        rows = [[f(*p)] for p in flat.tolist()] if name == "numbers" else f(flat.numpy())
        return torch.as_tensor(rows, dtype=torch.float64).reshape(*points.shape[:-1], 1)

    levels, measured = 2, math.inf
    while measured > 0.01:
        levels *= 2
        network = ah.theorems.two_layer(target, tokens=1, features=variables, levels=levels)
        measured = (network(x) - target(x)).abs().max().item()
        assert measured <= network.bound_for(lipschitz=lipschitz)
    assert levels <= 256


@pytest.mark.heavy
@settings(max_examples=4)
@given(a=st.floats(-1, 1), b=st.floats(-1, 1), c=st.floats(0.2, 2))
def test_conditional_bound_holds_for_functions_nobody_chose(a, b, c):
    def f(x, y):
        return abs(a * x + b * y) + c * math.sin(x - y)

    lipschitz = math.hypot(a, b) + c * math.sqrt(2)
    model = ah.compile(f, (-1, 1), tol=0.3, lipschitz=lipschitz)
    x = samples(model, 300)
    values = torch.tensor([f(*p) for p in x.tolist()], dtype=torch.float64)
    assert (model(x)[:, 0] - values).abs().max() <= model.certificate.bound


def hat(x):
    """One number to one: 0. here, and what x is there."""
    return max(0.0, 1 - abs(x - 0.12))


def test_a_function_of_one_number_may_give_numbers_of_any_kind(tmp_path):
    model = ah.compile(hat, (-1, 1), tol=0.1, lipschitz=1.0)
    x = samples(model)
    assert model.certificate.level == "conditional"
    model.save(tmp_path / "file")
    assert str(ah.load(tmp_path / "file").certificate) == str(model.certificate)
    assert (model(x)[:, 0] - torch.tensor([hat(u) for u in x[:, 0].tolist()])).abs().max() <= model.certificate.bound


REFUSALS = [
    (
        lambda: ah.compile(lambda x: max(0.0, 1 - 1e4 * abs(x - 0.1234567)), (-1, 1), tol=0.1, lipschitz=1.0),
        ah.InputError,
        "at least that",
    ),
    (
        lambda: ah.compile(lambda x: [x] if x < 0.3 else [x, x], (-1, 1), tol=0.1, lipschitz=1.0),
        ah.ShapeError,
        "as many at every point",
    ),
    (lambda: ah.compile(lambda x: [1.0 / (x > -0.7)], (-1, 1), tol=0.1, lipschitz=1.0), ah.InputError, "box on which"),
    (lambda: ah.compile("x*y", (0, 1), lipschitz=1.0), ah.InputError, "formula"),
    (lambda: ah.compile("x*y", (0, 1), method="two_layer"), ah.InputError, "Python function"),
    (lambda: ah.compile(ridge, (0, 1), lipschitz=-1.0), ah.InputError, "lipschitz"),
    (lambda: ah.compile(ridge, (0, 1), lipschitz=math.inf), ah.InputError, "lipschitz"),
    (lambda: ah.compile(ridge, (0, 1), lipschitz=1.0, method="gated"), ah.InputError, "grid or two_layer"),
    (lambda: ah.compile(ridge, (0, 1)), ah.ExpressionError, "lipschitz="),
    (lambda: ah.compile(lambda x: x.numpy().sum(-1), [(0, 1)] * 9, lipschitz=1.0), ah.InputError, "at most"),
    (lambda: ah.compile(lambda x, y: math.log(x - y), (0, 1), lipschitz=1.0), ah.AnchorheadError, "could not|finite"),
    (
        lambda: ah.compile(lambda x, y: 1 / (x - x) if x > 2 else x, (0, math.inf), lipschitz=1.0),
        ah.InputError,
        "finite",
    ),
    (lambda: ah.compile(ridge, (0, 1), tol=1e-5, lipschitz=2.0), ah.ToleranceError, "larger tol"),
    (lambda: ah.compile(bowl, [(0, 1)] * 3, tol=1e-5, method="two_layer"), ah.SizeError, "GiB"),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("call", "error", "sentence"), REFUSALS, ids=[s for _, _, s in REFUSALS])
def test_refusal_says_what_to_do(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()
