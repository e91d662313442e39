"""Theorems' networks hold finite numbers in every form, or are refused; what overflows all the same is said to."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.export.onnx_numbers import difference
from anchorhead.theorems.anchors import even_points

T = ah.theorems
HALF = torch.float16


def built(kind, low, high, size, beta, features=1):
    weights, bias = torch.ones(3, features), [0.0] * 3
    if kind == "multi_head":
        return T.multi_head(weights, bias, low, high, heads=size, beta=beta, dtype=HALF)
    return T.single_head(weights, bias, low, high, anchors=size + 2, beta=beta, causal=kind == "causal", dtype=HALF)


def softmax_of_squares(u, points, beta):
    """The paper's head in float64, by its formula."""
    return torch.softmax(-beta * (u[..., None] - points) ** 2, -1) @ points


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["causal", "single_head", "multi_head"]), st.floats(0.5, 200), st.integers(2, 8),
       st.none() | st.floats(1e-4, 10), st.integers(1, 4))  # fmt: skip
def test_every_form_of_a_network_in_float16_is_finite_and_keeps_the_bound_or_it_is_refused(kind, radius, size, beta, d):
    try:
        model = built(kind, -radius, radius, size, beta, d)
    except ah.PrecisionError:
        return
    named = model.matrices() | {name: value for name, value in model.numbers().items() if value.is_floating_point()}
    assert all(matrix.isfinite().all() for matrix in named.values())
    reach = min(2 * radius, model.summand_limit / 8)
    x = (torch.linspace(-1, 1, 60) * reach / d).reshape(-1, 3, 1).expand(-1, 3, d).to(HALF)
    u = x.double().sum(-1)
    for form in (model, model.literal(), model.to_stock_attention()):
        found = form(x).double()[..., 0]
        assert ((found - u.clamp(-radius, radius)).abs() <= model.bound + 1e-9 * radius).all()


@pytest.mark.parametrize(("low", "high", "anchors", "beta"), [
    (-64, 64, 4, None), (-8, 8, 4, 0.01), (-128, 128, 8, None), (-25, 25, 4, 0.01)
])  # fmt: skip
def test_a_causal_head_whose_silent_keys_are_far_below_at_a_small_beta_is_held_by_float16(low, high, anchors, beta):
    model = built("causal", low, high, anchors - 2, beta)
    x = torch.linspace(low, high, 99).reshape(-1, 3, 1).to(HALF)
    meant = softmax_of_squares(x.double()[..., 0], even_points(low, high, anchors), model.beta)
    wide = T.single_head(torch.ones(3, 1), [0.0] * 3, low, high, anchors, beta=beta, causal=True, dtype=torch.float64)
    for form in (model, model.literal(), model.to_stock_attention(), wide.to(HALF).literal()):
        assert (form(x).double()[..., 0] - meant).abs().max() <= model.bound / 8


def test_plans_hold_what_is_built():
    for tol in (20, 33, 50):
        plan = T.plan("single_head", low=-64, high=64, tol=tol, tokens=3, features=1, causal=True)
        assert plan.dtypes["float16"]
        model = built("causal", -64, 64, plan.anchors - 2, plan.beta)
        assert model.literal()(torch.full((1, 3, 1), 32.0, dtype=HALF)).isfinite().all()


@pytest.mark.parametrize("kind", ["causal", "single_head", "multi_head"])
@pytest.mark.parametrize("weight", [2.0, 0.5])
def test_no_limit_is_beyond_the_numbers_of_its_dtype(kind, weight):
    model = built(kind, -250, 250, 2, 1e-3 if kind == "multi_head" else 2e-3)
    limit = model.summand_limit
    assert limit <= torch.finfo(HALF).max
    model = T.multi_head(torch.full((3, 1), weight), [0.0] * 3, -250, 250, heads=1, dtype=HALF)
    limit = min(model.summand_limit, torch.finfo(HALF).max * weight)
    assert limit <= torch.finfo(HALF).max
    x = torch.full((1, 3, 1), 0.999 * limit / weight, dtype=HALF)
    for form in (model, model.literal()):
        assert (form(x) - 250).abs().max() <= model.bound
    grid = T.two_layer(torch.sin, 1, 1, 2, low=-250, high=250, slope=0.9, ramp_anchors=2, dtype=HALF)
    assert grid.reach + 250 <= torch.finfo(HALF).max


def test_biases_whose_distance_from_the_middle_overflows_are_refused():
    with pytest.raises(ah.PrecisionError, match="cannot hold"):
        T.single_head(torch.ones(2, 1), [60000.0, 0.0], -65000, -1, anchors=3, dtype=HALF)


def test_what_overflows_in_the_literal_form_alone_is_said_to():
    model = built("single_head", -8, 8, 4, None)
    x = torch.zeros(1, 3, 1, dtype=HALF)
    x[0, 0] = 30000.0
    assert (model(x)[0, 1:] - model.exact(x)[0, 1:]).abs().max() <= model.bound
    with pytest.raises(ah.StructureError, match=r"not finite in \d of 3 outputs"):
        ah.walk(model, x)
    with pytest.raises(ah.PrecisionError, match=r"In onnxruntime \d of 3 outputs are not finite where the model's are"):
        difference(model.literal()(x), model(x))
    assert difference(model.literal()(x), model.literal()(x)) == 0
