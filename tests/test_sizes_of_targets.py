"""What no head can have, sizes beyond the dtype or errors below it, is refused at once, by its own name."""

import pytest
import torch

import anchorhead as ah
from anchorhead.compiler import search


@pytest.mark.parametrize(
    ("text", "domain", "options", "said"),
    [
        (
            "gelu(x)",
            (-40, -5),
            {"tol": 1e-4, "relative": True},
            r"falls to 0 .* must keep to \(-37\.2.*, -5\)",
        ),
        (
            "exp(x)",
            (-744, -700),
            {"tol": 1e-3, "relative": True},
            "falls to .* at x = -744, .* leave relative=True out",
        ),
        ("exp(x)", (700, 709.7), {"tol": 1e-6, "relative": True}, r"as large as 1\.65e\+308; .* up to 1e\+100"),
        ("gelu(x)", None, {"tol": 1e-17}, "below what the dtype can hold"),
        ("sqrt(x**2 - 1e-20)", (-1, 1), {"tol": 1e-4}, "not defined near x = 0"),
    ],
)
def test_refused_before_anything_is_fitted(text, domain, options, said, monkeypatch):
    monkeypatch.setattr(search.Search, "_first_success", lambda self: pytest.fail("a head was fitted"))
    with pytest.raises(ah.AnchorheadError, match=said):
        ah.compile(text, domain, **options)


def test_domain_that_is_proposed_can_be_had():
    certificate = ah.compile("exp(x)", (-696.9, -690), tol=1e-3, relative=True).certificate
    assert certificate.level == "proved"


@pytest.mark.parametrize("text", ["x", "relu(x)"])
def test_straight_targets_keep_any_tolerance(text):
    assert ah.compile(text, tol=1e-17).certificate.bound <= 1e-17


@pytest.mark.parametrize(
    ("text", "dtype", "what"),
    [
        ("0.7*x", torch.float32, "left has the slope 0.7"),
        ("leaky_relu(x, 0.3)", torch.float32, "left has the slope 0.3"),
        ("0.5*relu(x - 0.2)", torch.float32, "right has the constant -0.1"),
        ("leaky_relu(x, 0.1)", torch.float64, "left has the slope 0.1"),
    ],
)
def test_a_line_between_numbers_of_the_dtype_is_named(text, dtype, what):
    wide = dtype == torch.float64
    with pytest.raises(ah.ToleranceError, match=f"{what}, which is no number of .* off by") as refused:
        ah.compile(text, tol=1e-17 if wide else 1e-9, dtype=dtype)
    advice = "Use a larger tol." if wide else "Use a larger tol or a wider dtype."
    assert str(refused.value).endswith(advice)
    assert ah.compile(text, tol=1e-16 if wide else 1e-7, dtype=dtype).certificate.level == "proved"
    assert ah.compile(text, tol=1e-9).certificate.bound <= 1e-9


@pytest.mark.parametrize(("near", "away"), [("exp(-x**2)", "exp(-(x + 4.44)**2)"), ("1/cosh(x)", "1/cosh(x - 30)")])
def test_a_bump_takes_as_many_keys_wherever_it_is(near, away):
    assert ah.compile(away).resources.keys <= ah.compile(near).resources.keys + 1


def test_slopes_of_the_dtype_keep_any_tolerance():
    assert ah.compile("0.75*x", tol=1e-12, dtype=torch.float32).certificate.bound <= 1e-12


@pytest.mark.parametrize("text", ["x*exp(x) + abs(x)", "elu(max(expm1(x), abs(x)))"])
def test_what_follows_no_line_is_refused_for_that_and_not_for_its_size(text):
    with pytest.raises(ah.InputError, match="not seen to approach a line exponentially on the right"):
        ah.compile(text)


def test_what_is_finite_and_near_a_singularity_is_not_said_to_be_infinite():
    with pytest.raises(ah.SingularityError, match="comes too near one to tell"):
        ah.compile("log(x)*y**0.3", {"x": (1e-300, 2), "y": (0, 1)}, tol=1e-3)


def test_target_that_is_undefined_on_a_sliver_is_bounded_where_it_is_defined():
    model = ah.compile("sqrt(x**2 - 1e-20)", (-1, 2), tol=1e-3)
    x = torch.linspace(-1, 2, 1001, dtype=torch.float64)
    assert (model(x) - (x**2 - 1e-20).sqrt()).abs().max() <= model.certificate.bound


@pytest.mark.parametrize(("text", "tol"), [("1e15*relu(x)", 1e9), ("1e50*tanh(x)", 1e44), ("1e20*gelu(x)", 1e14)])
def test_claims_on_the_line_are_measured_by_the_sizes_of_their_heads(text, tol, tmp_path):
    model = ah.compile(text, tol=tol)
    model.save(tmp_path / "model.safetensors")
    checked = ah.verify(tmp_path / "model.safetensors")
    assert checked.bound <= tol
    assert checked.rounding < 1e-10 * model.largest_value


def test_rounding_without_a_bound_is_named_as_that():
    with pytest.raises(ah.ToleranceError, match=r"may round by has no bound .* or a smaller domain") as found:
        ah.compile("log(x)", (2, 1e30), tol=1e-6, relative=True, method="gamma")
    assert found.value.best > 1e-6


def test_a_peak_that_no_fit_sees_is_named():
    with pytest.raises(ah.ToleranceError, match=r"err by .* at x = 0\.1234567"):
        ah.compile("x + exp(-((x - 0.1234567)/1e-9)**2)", (0, 1), tol=1e-3, method="pieces")
