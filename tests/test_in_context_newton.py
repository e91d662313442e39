"""The networks that estimators run: fast, literal and exact forms agree, and deviations stay within what is proved."""

import pytest
import torch

import anchorhead as ah
from anchorhead.errors import InputError
from anchorhead.in_context.multinomial import Multinomial

ic = ah.in_context
SIZES = {"x": 4.0, "y": 8.0, "w": 16.0, "s": 8.0, "curvature": 16.0}
DOUBLE = {"dtype": torch.float64}


def prompt(loss="squared"):
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(30, 3, generator=draw, **DOUBLE).clamp(-4, 4)
    y = X @ torch.tensor([1.0, -0.5, 0.2], **DOUBLE) + 0.3 * torch.randn(30, generator=draw, **DOUBLE)
    return X, (y > 0).double() if loss in ("logistic", "poisson") else y


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
def test_newtons_steps_keep_their_bound_in_all_forms(loss):
    X, y = prompt(loss)
    model = ic.newton_descent(loss, features=3, examples=30, inversions=8, l2=0.1, bounds=SIZES)
    found, exact = model(X, y), model.exact(X, y)[-1]
    assert model.certificate.level == "proved"
    assert (found - exact).norm() <= model.certificate.bound < 1e-3
    assert (model.literal()(X, y) - found).abs().max() < 1e-10
    shares = torch.rand(30, generator=torch.Generator().manual_seed(1), **DOUBLE) / 30
    weighted = model(X, y, None, shares, torch.tensor([0.1, 0.0, -0.1], **DOUBLE))
    assert weighted.isfinite().all()
    assert (weighted - found).abs().max() > 1e-3


def test_self_attention_takes_the_same_step():
    X, y = (v[:3] for v in prompt())
    X = X[:, :2]
    model = ic.newton_descent("squared", features=2, examples=3, inversions=2, l2=1.0, bounds=SIZES)
    assert (model.as_self_attention(3)(X, y) - model(X, y)).abs().max() < 1e-9


def test_splitting_keeps_its_bound_and_finds_the_minimiser():
    X, y = prompt()
    model = ic.shrinkage(features=3, examples=30, steps=200, inversions=10, pull=1.0, l1=0.2, bounds=SIZES)
    z, u = model(X, y)
    exact = model.exact(X, y)[0]
    assert model.certificate.level == "proved"
    assert (z - exact).norm() <= model.certificate.bound < 1e-3
    gradient = X.mT @ (X @ z - y) / 30
    assert ((gradient + 0.2 * z.sign())[z.abs() > 1e-6].abs() < 1e-7).all()
    assert (gradient.abs() <= 0.2 + 1e-7).all()
    assert (model.literal()(X, y) - torch.stack([z, u])).abs().max() < 1e-8


def test_softmax_over_classes_is_a_head():
    X, _ = prompt()
    labels = torch.nn.functional.one_hot(torch.arange(30) % 3, 3).double()
    model = Multinomial(features=3, classes=3, examples=30, inversions=10, l2=0.1, x=4.0, w=64.0, curvature=8.0)
    W = torch.zeros(3, 3, **DOUBLE)
    for _ in range(8):
        W = model(X, labels, W)
    gradient = ((X @ W.mT).softmax(1) - labels).mT @ X / 30 + 0.1 * W
    assert gradient.abs().max() < 1e-12
    assert (model.literal()(X, labels, W) - model(X, labels, W)).abs().max() < 1e-10
    assert (model.exact(X, labels, W) - model(X, labels, W)).abs().max() < 1e-10


def test_what_newtons_steps_refuse():
    X, y = prompt()
    with pytest.raises(InputError, match="curvature"):
        ic.newton_descent("log(cosh(s - y))", features=3, examples=30, inversions=4, bounds=SIZES)
    model = ic.newton_descent("squared", features=3, examples=30, inversions=4, bounds=SIZES | {"curvature": 0.5})
    with pytest.raises(ic.OutsideBoundsError, match="trace of the Hessian"):
        model(X, y)
    with pytest.raises(InputError, match="Shares"):
        model(X, y, None, -torch.ones(30, **DOUBLE))
