"""What theorems' networks say of themselves: every β by its name, what they compute, and where their bound is."""

import math

import pytest
import torch

import anchorhead as ah
from anchorhead.theorems import plan, single_head, two_layer


@pytest.mark.parametrize("name", ["certificate", "report"])
def test_what_a_theorem_has_instead_of_a_certificate_is_said(name):
    for model in (single_head([[1.0]], [0.0], -1, 1, 8), two_layer("x1", 1, 1, 4)):
        assert not hasattr(model, name)
        with pytest.raises(ah.AnchorheadError, match="bound_for"):
            getattr(model, name)
    assert not hasattr(model, "nothing_of_that_name")


def test_pages_say_what_is_computed_and_every_beta():
    model = two_layer("sin(x1)*x2", 1, 2, 4)
    page = model._repr_html_()
    for text in ("two_layer: sin(x1)*x2", "levels g = 4", "beta of the look-up", "beta of the ramps", "layer2.",
                 f"{model.beta:.6g}", f"{model.ramp_beta:.6g}", "bound_for(lipschitz=L)"):  # fmt: skip
        assert text in page
    assert "depends on how fast f varies, which its values" not in page
    head = single_head([[1.0]], [0.0], -1, 1, 8)._repr_html_()
    assert "single_head: clip(w_i·x_i + t_i, -1, 1)" in head
    assert "lift.<wbr>rows" in head


def test_plans_name_both_betas_of_a_look_up():
    found = plan("two_layer", tol=0.2, tokens=1, features=1, lipschitz=1.0)
    model = two_layer("x1", 1, 1, found.levels)
    assert math.isclose(found.beta, model.beta)
    assert math.isclose(found.ramp_beta, model.ramp_beta)
    assert f"of ramps {model.ramp_beta:.6g}" in str(found)
    assert plan("single_head", tol=0.2, tokens=1, features=1).ramp_beta is None


@pytest.mark.parametrize("returned", ["a", None, [1.0], math.nan, -1.0])
def test_a_modulus_that_returns_no_number_is_refused(returned):
    with pytest.raises(ah.InputError, match="modulus of continuity returned"):
        two_layer("x1", 1, 1, 4).bound_for(lipschitz=lambda r: returned)


def test_one_layer_is_a_layer():
    model = ah.compile("tanh(x)", tol=1e-2)
    assert "1 layer, 1 head, " in str(model)
    assert "1 layer, 1 head, " in str(ah.plan("tanh(x)", tol=1e-2))
    assert model(torch.zeros(1, dtype=torch.float64)).isfinite().all()
