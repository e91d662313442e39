"""What theorems' networks say of themselves: every β by its name, what they compute, and where their bound is."""

import math

import pytest
import torch

import anchorhead as ah
from anchorhead.theorems import plan, single_head, two_layer

INSTEAD = {"certificate": "bound_for", "report": "bound_for", "probe": "bound_for", "mechanism": r"\.matrices\(\) has"}


@pytest.mark.parametrize("name", INSTEAD)
def test_what_a_theorem_has_instead_of_a_certificate_is_said(name):
    for model in (single_head([[1.0]], [0.0], -1, 1, 8), two_layer("x1", 1, 1, 4)):
        assert not hasattr(model, name)
        with pytest.raises(ah.AnchorheadError, match=INSTEAD[name]):
            getattr(model, name)
    assert not hasattr(model, "nothing_of_that_name")


def test_a_bound_that_is_not_there_is_no_attribute():
    """Whoever goes over all networks may ask."""
    ramps, lookup = single_head([[1.0]], [0.0], -1, 1, 8), two_layer("x1", 1, 1, 4)
    assert hasattr(ramps, "bound")
    assert not hasattr(ramps, "bound_for")
    assert getattr(lookup, "bound", None) is None
    with pytest.raises(ah.AnchorheadError, match=r"Declare it: bound_for"):
        lookup.bound  # noqa: B018
    with torch.no_grad():
        ramps.attention.value.mul_(1.5)
    for name in ("bound", "sum_bound"):
        assert not hasattr(ramps, name)
        with pytest.raises(ah.AnchorheadError, match="were changed"):
            getattr(ramps, name)


NARROW = [getattr(torch, name) for name in dir(torch) if name.startswith("float8")]


@pytest.mark.parametrize("dtype", NARROW)
def test_dtypes_that_no_head_can_be_built_in_are_refused_by_name(dtype):
    for build in (
        lambda: single_head([[1.0]], [0.0], 0, 1, 8, dtype=dtype),
        lambda: single_head(torch.ones(1, 1).to(dtype), [0.0], 0, 1, 8),
        lambda: two_layer("x1", 1, 1, 4, dtype=dtype),
        lambda: single_head([[1.0]], [0.0], 0, 1, 8).to(dtype),
    ):
        with pytest.raises(ah.PrecisionError, match=str(dtype)):
            build()


def broken(*_):
    raise ZeroDivisionError("of theirs")


def of_lattices(points, weights):
    return broken() if len(points) == 3 else weights @ points[:, 0]


@pytest.mark.parametrize(
    "ask",
    [
        lambda: single_head([[1.0]], [0.0], 0, 1, 8, output_row=broken),
        lambda: two_layer(broken, 1, 1, 4),
        lambda: two_layer("x1", 1, 1, 4).bound_for(lipschitz=broken),
        lambda: ah.in_context.universal(broken, {"x": (0, 1)}, 2, 2, lipschitz=1.0),
        lambda: ah.in_context.universal(of_lattices, {"x": (0, 1)}, 2, 2, lipschitz=1.0).exact(
            torch.ones(3, 1, dtype=torch.float64)
        ),
    ],
)
def test_what_a_callable_of_the_caller_raises_is_said_with_what_it_is_called_with(ask):
    with pytest.raises(
        ah.InputError, match=r"raised ZeroDivisionError for .*: of theirs\. .* called|.* works on"
    ) as said:
        ask()
    assert isinstance(said.value.__cause__, ZeroDivisionError)


def test_a_row_that_is_no_whole_number_is_named():
    with pytest.raises(ah.InputError, match=r"output_row\(0\) returned 0\.5, which is no whole number"):
        single_head([[1.0]], [0.0], 0, 1, 8, output_row=lambda k: k + 0.5)


@pytest.mark.parametrize("modulus", [lambda r: 1 - r, lambda r: r if r < 0.1 else 0.0])
def test_a_modulus_that_falls_is_refused(modulus):
    with pytest.raises(ah.InputError, match="falls from"):
        two_layer("x1/2", 1, 1, 4).bound_for(lipschitz=modulus)


@pytest.mark.parametrize("weights", [[], [[]], torch.zeros(0, 2)])
def test_weights_of_nothing_are_told_what_is_the_least(weights):
    with pytest.raises(ah.ShapeError, match="at least one token and one feature"):
        single_head(weights, [0.0], 0, 1, 8)


def test_a_network_does_not_go_where_it_would_have_no_numbers():
    for model in (single_head([[1.0]], [0.0], 0, 1, 8), two_layer("x1", 1, 1, 4)):
        with pytest.raises(ah.InputError, match="meta device"):
            model.to("meta")
        assert not model.edited
        assert model(torch.full((1, 1), 0.5, dtype=torch.float64)).isfinite().all()
        with pytest.raises(ah.InputError, match="meta device"):
            model(torch.zeros(1, 1, dtype=torch.float64, device="meta"))


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


def test_one_token_of_one_feature_is_said_so():
    ramps, lookup = ah.theorems.single_head([[1.0]], [0.0], -1, 1, 4), two_layer("x1", 1, 1, 4)
    plan = ah.theorems.plan("single_head", low=-1, high=1, tol=0.1, tokens=1, features=1)
    for said in (str(ramps), str(lookup), str(plan)):
        assert "1 token x 1 feature" in said
        assert "1 tokens" not in said
        assert "1 features" not in said
