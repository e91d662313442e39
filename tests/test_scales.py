"""Neither how steep a target is nor in which units it is given decides whether it can be had."""

import mpmath
import pytest
import torch

import anchorhead as ah


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
