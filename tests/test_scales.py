"""Neither how steep a target is nor in which units it is given decides whether it can be had."""

import mpmath
import pytest
import second_checker
import torch

import anchorhead as ah
from anchorhead.compiler.head_methods import Gamma


def _kept(model, exact, places):
    """Whether |model - exact| <= approximation + rounding (1 + |x|) at the places."""
    claim = model.certificate
    with mpmath.workprec(300):
        for x, y in zip(places, model(torch.tensor(places, dtype=torch.float64)).tolist(), strict=True):
            room = mpmath.mpf(claim.approximation) + mpmath.mpf(claim.rounding) * (1 + abs(mpmath.mpf(x)))
            if abs(exact(mpmath.mpf(x)) - mpmath.mpf(y)) > room:
                return False
    return True


STEEP = {
    "1e3*relu(x-0.1)": lambda x: 1000 * max(x - mpmath.mpf(1) / 10, 0),
    "1e4*leaky_relu(x-0.3)": lambda x: 10**4 * (x - mpmath.mpf("0.3")) / (1 if x > mpmath.mpf("0.3") else 100),
    "1e6*abs(x-1e-3)": lambda x: 10**6 * abs(x - mpmath.mpf("0.001")),
    "leaky_relu(1e4*x-3e3)": lambda x: (10**4 * x - 3000) / (1 if 10 * x > 3 else 100),
    "1e9*relu(x-0.1)": lambda x: 10**9 * max(x - mpmath.mpf(1) / 10, 0),
}


@pytest.mark.parametrize("text", STEEP)
def test_steep_lines_on_the_line_keep_a_tolerance_and_round_in_proportion(text, tmp_path):
    model = ah.compile(text, tol=1e-6)
    assert model.resources.keys == 2
    model.save(tmp_path / "model.safetensors")
    assert ah.verify(tmp_path / "model.safetensors").bound <= 1e-6
    with mpmath.workprec(300):
        near = [kink + s * 10.0**k for kink in (0.1, 0.3, 0.001) for s in (-1, 1) for k in range(-18, 0)]
    assert _kept(model, STEEP[text], [*near, *(s * 10.0**k for s in (-1, 1) for k in range(-300, 290, 7))])


SCALED = [
    ("1e-14*tanh(x)", None, 1e-20, lambda x: mpmath.tanh(x) / mpmath.mpf(10) ** 14),
    ("x/2**54*sigmoid(x)", None, 5e-23, lambda x: x / (1 + mpmath.exp(-x)) / 2**54),
    ("1e-16*abs(x - 0.1)", None, 1e-22, lambda x: abs(x - mpmath.mpf(1) / 10) / mpmath.mpf(10) ** 16),
    ("1e-20*exp(x)", (-1, 1), 1e-26, lambda x: mpmath.exp(x) / mpmath.mpf(10) ** 20),
    ("1e-200*sin(x)", (-3, 3), 1e-206, lambda x: mpmath.sin(x) / mpmath.mpf(10) ** 200),
    ("1e12*softplus(x)", None, 1e6, lambda x: mpmath.log1p(mpmath.exp(x)) * 10**12),
]


@pytest.mark.parametrize(("text", "domain", "tol", "exact"), SCALED, ids=lambda v: v if isinstance(v, str) else "")
def test_small_and_large_units_take_as_few_keys(text, domain, tol, exact, tmp_path):
    model = ah.compile(text, domain, tol=tol)
    assert model.resources.keys <= 12
    model.save(tmp_path / "model.safetensors")
    assert ah.verify(tmp_path / "model.safetensors").bound <= tol
    reach = 50 if domain is None else domain[1]
    assert _kept(model, exact, [reach * k / 101 for k in range(-101, 102)])


@pytest.mark.parametrize("text", ["cos(2*x) + x", "tanh(x)"])
@pytest.mark.parametrize("power", [-300, -40, 33])
def test_a_power_of_two_changes_no_search(text, power):
    far, further = (ah.compile(f"2**{p}*({text})", (-2, 2), tol=2.0 ** (p - 20)) for p in (power, power - 12))
    assert further.head.slopes.tolist() == far.head.slopes.tolist()
    assert (further.head.constants * 2.0**12).tolist() == far.head.constants.tolist()


def test_keys_that_are_given_are_fitted_in_the_target_s_unit():
    small, usual = (ah.compile(f"{unit}*gelu(x)", (-4, 4), keys=6).certificate for unit in ("2**-60", "1"))
    assert small.bound <= 1.1 * 2.0**-60 * usual.bound


def test_values_under_a_row_map_are_fitted_in_the_target_s_unit():
    large = ah.compile("1e6*x**3 - x", (-1, 1), tol=1, row_map=ah.row_maps.Sigmoid())
    assert large.resources.keys == ah.compile("x**3 - x/1e6", (-1, 1), tol=1e-6,
                                              row_map=ah.row_maps.Sigmoid()).resources.keys  # fmt: skip


def test_gamma_heads_fitted_by_size_keep_an_absolute_error_over_decades():
    model = ah.compile("1/x", (1e-6, 1), tol=1, method=Gamma(by_size=True))
    assert model.resources.keys <= 30
    assert model.certificate.bound <= 1
    assert not model.certificate.relative


def test_pieces_are_no_more_than_a_constant_where_that_is_enough():
    model = ah.compile("abs(x)**2.5", (-1e-12, 1e-12), tol=2e-4, dtype=torch.float32, method="pieces")
    assert model.resources.keys == 1
    assert model.certificate.bound <= 1e-29


@pytest.mark.heavy
def test_auto_finds_the_gamma_head_that_there_is():
    assert ah.compile("1/x", (1e-6, 1), tol=1).resources.keys <= 30


BENT = {
    "clip(x, 0, 6)": lambda x: min(max(x, 0), 6),
    "hardtanh(x, -2, 0.1)": lambda x: min(max(x, -2), mpmath.mpf(1) / 10),
    "max(x, 0.3*x - 2)": lambda x: max(x, x * 3 / 10 - 2),
    "hardswish(x)": lambda x: x * min(max(x + 3, 0), 6) / 6,
}


@pytest.mark.parametrize("text", BENT)
def test_kinks_away_from_zero_keep_a_tolerance_as_small_as_at_zero(text, tmp_path):
    model = ah.compile(text, tol=1e-13)
    model.save(tmp_path / "model.safetensors")
    assert ah.verify(tmp_path / "model.safetensors").bound <= 1e-13
    with mpmath.workprec(300):
        kinks = (-3.0, -20 / 7, -2.0, 0.0, 0.1, 3.0, 6.0)
        near = [kink + s * 10.0**k for kink in kinks for s in (-1, 1) for k in range(-17, 1)]
        assert _kept(model, BENT[text], [*kinks, *near])


def test_two_checkers_prove_a_kink_away_from_zero(tmp_path):
    path = tmp_path / "model.safetensors"
    ah.compile("clip(x, 0, 6)", (-10, 10), tol=1e-12).save(path)
    assert second_checker.check(path).ok
