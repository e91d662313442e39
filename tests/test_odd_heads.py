"""Products and squares are odd heads, c·tanh(u/c): two keys, and errors relative to the product, in every dtype."""

import dataclasses
import functools

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mp_functions import formula_at
from torch import nn

import anchorhead as ah
from anchorhead.circuit.apply import SQUARE, U
from anchorhead.compiler.head_requests import Request
from anchorhead.compiler.proved_heads import choose
from anchorhead.file.checker import check_head
from anchorhead.head.head import Head
from anchorhead.head.module import HeadModule

UNIT = {"x": (-1, 1), "y": (-1, 1)}
DTYPES = {"float64": torch.float64, "float32": torch.float32}


@functools.cache
def odd(square, dtype, error):
    """The claim of an odd head for u or u², and its module."""
    kind, function = ("square", SQUARE) if square else ("identity", U)
    claim = choose(Request(function, -1.0, 1.0, not square, [], kind), error, dtype, print).claim
    return claim, HeadModule(claim.head)


def sizes(dtype):
    """Numbers of every size down to the subnormal ones."""
    least = -140 if dtype == "float32" else -1060
    return st.builds(lambda s, m, e: s * m * 2.0**e, st.sampled_from([-1, 1]), st.floats(0.5, 1), st.integers(least, 0))


@pytest.mark.parametrize("square", [False, True], ids=["u", "u²"])
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
@settings(max_examples=200)
def test_error_and_rounding_are_relative(square, dtype, data):
    error = data.draw(st.sampled_from([1e-3, 1e-6] + [1e-12] * (dtype == "float64")))
    claim, module = odd(square, dtype, error)
    assert (claim.keys, claim.relative, claim.evaluation) == (2, True, "fast")
    assert claim.bound <= error
    x = torch.tensor(data.draw(sizes(dtype)), dtype=DTYPES[dtype])
    with mp.workdps(400):
        u, odd_head = mp.mpf(x.item()), claim.head.odd
        exact = u * u if square else u
        stored = odd_head.height * mp.tanh(u * odd_head.rate) * (u if square else 1)
        assert abs(stored - exact) <= claim.approximation * abs(exact)
        assert abs(mp.mpf(module(x).item()) - stored) <= claim.rounding * abs(exact) + claim.least
    check_head(claim)


@pytest.mark.parametrize("what", ["approximation", "rounding", "height", "both evaluations"])
def test_the_checker_refuses_what_is_not_so(what):
    claim, _ = odd(False, "float32", 1e-6)
    forged = {
        "approximation": lambda: dataclasses.replace(claim, approximation=claim.approximation / 2),
        "rounding": lambda: dataclasses.replace(claim, rounding=claim.rounding / 2),
        "height": lambda: dataclasses.replace(
            claim, head=dataclasses.replace(claim.head, constants=tuple(1.001 * c for c in claim.head.constants))
        ),
        "both evaluations": lambda: dataclasses.replace(claim, evaluation=""),
    }[what]()
    with pytest.raises(ah.VerificationError):
        check_head(forged)


@pytest.mark.parametrize("tilted", [False, True])
def test_the_tanh_is_the_softmax_and_its_gradients_too(tilted):
    own, still = (-3.0, 3.0), (0.0, 0.0)
    head = Head((-0.5, 0.5), still, still if tilted else own, own if tilted else still, horner=True)
    assert head.odd is not None
    module, literal = HeadModule(head), HeadModule(head).literal()
    x = torch.linspace(-30, 30, 301, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(module(x), literal(x), rtol=1e-13, atol=1e-13)
    for each in (module, literal):
        each.requires_grad_(True)
    assert torch.equal(module(x), HeadModule(head)(x))
    pairs = [torch.autograd.grad(m(x).sum(), [x, *m.parameters()], allow_unused=True) for m in (module, literal)]
    for ours, theirs in zip(*pairs, strict=True):
        assert ours is None or torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_an_edited_head_is_no_longer_a_tanh():
    head = Head((-0.5, 0.5), (0.0, 0.0), (-3.0, 3.0), (0.0, 0.0), horner=True)
    module, x = HeadModule(head), torch.linspace(-2, 2, 9, dtype=torch.float64)
    with torch.no_grad():
        module.constants[1] = 4.0
    assert module.numbers.odd is None
    assert torch.allclose(module(x), module.literal()(x))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up, self.down = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


NETWORKS = {
    "a product": ("x*y", UNIT, 1e-6, 2),
    "four factors": ("x*y*z*w", dict.fromkeys("xyzw", (-1, 1)), 1e-5, 6),
    "functions of products": ("sin(3*x*y) + exp(-x**2 + y/2)", UNIT, 1e-5, 24),
    "a gated block": (Gated(), (-1, 1), 1e-5, 40),
    "a norm": (nn.RMSNorm(16, eps=1.0), (-1, 1), 1e-5, 160),
}


@functools.cache
def network(name):
    target, domain, tol, _ = NETWORKS[name]
    shape = {"shape": (16,)} if name == "a norm" else {}
    return ah.compile(target, domain, tol=tol, dtype=torch.float32, method="graph", **shape)


@pytest.mark.heavy
@pytest.mark.parametrize("name", NETWORKS)
def test_float32_networks_keep_what_float32_can_hold(name, tmp_path):
    model, (_, _, tol, keys) = network(name), NETWORKS[name]
    assert model.certificate.level == "proved"
    assert model.certificate.evaluation == "fast"
    assert model.certificate.bound <= tol
    assert model.resources.keys <= keys
    model.save(tmp_path / "model")
    assert ah.verify(tmp_path / "model").bound == model.certificate.bound
    assert ah.load(tmp_path / "model").certificate == model.certificate
    x = 2 * torch.rand(2000, *model.input_shape, generator=torch.Generator().manual_seed(0)) - 1
    exact = model.exact(x).double()
    assert (model(x).double() - exact).abs().max() <= 1.1 * model.certificate.bound


@pytest.mark.parametrize("name", ["a product", "four factors"])
@given(shares=st.lists(st.floats(-1, 1), min_size=4, max_size=4))
@settings(max_examples=50)
def test_both_certificates_hold_at_points_nobody_chose(name, shares):
    model, (text, domain, _, _) = network(name), NETWORKS[name]
    x = torch.tensor(shares[: len(domain)], dtype=torch.float32)
    literal = model.literal_certificate()
    assert literal.evaluation == "literal"
    assert literal.bound > model.certificate.bound
    with mp.workdps(60):
        exact = formula_at(text, dict(zip(domain, x.tolist(), strict=True)))
        assert abs(mp.mpf(model(x).item()) - exact) <= model.certificate.bound
        assert abs(mp.mpf(model.literal()(x).item()) - exact) <= literal.bound


def test_products_for_the_literal_form_are_good_in_that_form():
    model = ah.compile("x*y", UNIT, tol=1e-4, dtype=torch.float32, method="graph", evaluation="literal")
    assert model.literal_certificate() == model.certificate
    assert model.certificate.evaluation == ""
    assert model.certificate.bound <= 1e-4
    assert "literal" not in str(model)
    assert "as a literal softmax" in str(network("a product"))


def test_the_other_evaluation_is_named_or_refused():
    with pytest.raises(ah.InputError, match="evaluation="):
        ah.compile("x*y", UNIT, evaluation="quick")


def test_float64_keeps_moderate_tolerances_literally_too():
    model = ah.compile("x*y + x**2", UNIT, tol=1e-8, method="graph")
    assert model.resources.keys == 4
    assert model.literal_certificate().bound <= 2e-8
    assert ah.walk(model, torch.zeros(3, 2, dtype=torch.float64)).softmax >= 1
