"""What divides by something that grows exponentially settles, and is compiled on the whole line."""

import math

import mpmath
import pytest
import second_checker
import torch

import anchorhead as ah

SETTLING = {
    "1/cosh(x)": mpmath.sech,
    "2/(exp(x) + exp(-x))": mpmath.sech,
    "x/cosh(x)": lambda x: x * mpmath.sech(x),
    "1/cosh(1000*x)": lambda x: mpmath.sech(1000 * x),
    "1/sqrt(1 + exp(2*x))": lambda x: 1 / mpmath.sqrt(1 + mpmath.exp(2 * x)),
    "min(exp(x), 3)": lambda x: min(mpmath.exp(x), 3),
}


@pytest.mark.parametrize("text", SETTLING)
def test_quotients_that_settle_are_proved_on_the_line_by_two_checkers(text, tmp_path):
    path, exact = tmp_path / "model.safetensors", SETTLING[text]
    ah.compile(text, tol=1e-6).save(path)
    claim = ah.verify(path)
    assert (claim.level, claim.domain) == ("proved", ((-math.inf, math.inf),))
    assert claim.bound <= 1e-6
    assert second_checker.check(path).ok
    places = [s * 10 ** (k / 8) for s in (-1, 1) for k in range(-40, 60)]
    with mpmath.workprec(200):
        for x, y in zip(places, ah.load(path)(torch.tensor(places, dtype=torch.float64)).tolist(), strict=True):
            room = mpmath.mpf(claim.approximation) + mpmath.mpf(claim.rounding) * (1 + abs(x))
            assert abs(exact(mpmath.mpf(x)) - y) <= room


@pytest.mark.parametrize("text", ["sqrt(1 + exp(x))", "exp(1000*x)", "cosh(2*x) - 1"])
def test_refusals_speak_of_the_formula_that_was_given(text):
    with pytest.raises(ah.InputError, match="not seen to approach a line") as refusal:
        ah.compile(text)
    assert str(refusal.value).startswith(f"{text} is not seen")


@pytest.mark.parametrize(("domain", "places"), [((500, math.inf), (500.0, 1e9)), ((-math.inf, -5e3), (-5e3, -1e9))])
def test_half_lines_far_out_are_compiled(domain, places):
    for text in ("gelu(x)", "1/cosh(x)"):
        model = ah.compile(text, domain, tol=1e-6)
        for place in places:
            exact = place if text == "gelu(x)" and place > 0 else 0.0
            room = 1e-6 + model.certificate.rounding * (1 + abs(place))
            assert abs(model(torch.tensor(place, dtype=torch.float64)).item() - exact) <= room
