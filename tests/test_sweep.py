"""Every number of a sixteen-bit dtype: errors in units in the last place, as mpmath has them."""

import mpmath as mp
import pytest
import torch
import torch.nn.functional as F
from mp_functions import REFERENCE, sigmoid, softplus
from torch import nn

import anchorhead as ah

mp.mp.dps = 60
BITS = {torch.bfloat16: (8, -126), torch.float16: (11, -14)}
CASES = [(F.gelu, "gelu(x)", REFERENCE["gelu(x)"]), (F.silu, "silu(x)", lambda x: x * sigmoid(x)),
         (torch.tanh, "tanh(x)", mp.tanh), (torch.exp, "exp(x)", mp.exp),
         (F.softplus, "softplus(x)", softplus)]  # fmt: skip


def units(exact, got, dtype):
    """|got - exact| in units in the last place, from the definition."""
    bits, least = BITS[dtype]
    exponent = max(int(mp.floor(mp.log(abs(exact), 2))) if exact else least, least)
    return abs(mp.mpf(got) - exact) / mp.mpf(2) ** (exponent - bits + 1)


@pytest.mark.parametrize(("function", "formula", "reference"), CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_units_as_mpmath_has_them(function, formula, reference, dtype):
    found = ah.sweep(function, formula, dtype)
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    values = dict(zip(every.tolist(), function(every).tolist(), strict=True))  # all at once: one by one may differ
    assert found.largest == max(row.error for row in found.worst)
    assert found.inputs > 40_000
    for row in found.worst:
        assert values[row.input] == row.got
        assert abs(units(reference(mp.mpf(row.input)), row.got, dtype) - row.error) <= 1e-9 * max(1, row.error)
        if row.error < 0.5:
            assert row.correct == row.got
    picks = range(0, found.inputs, 997)
    for i in picks:
        x = float(found.places[i])
        assert abs(units(reference(mp.mpf(x)), values[x], dtype) - found.errors[i]) <= 1e-9 * max(1, found.errors[i])


def test_special_values():
    found = ah.sweep(torch.exp, "exp(x)", torch.float16)
    assert not found.special
    logs = ah.sweep(torch.log, "log(x)", torch.bfloat16)
    assert not logs.special
    assert logs.inputs < 33_000
    broken = ah.sweep(lambda x: torch.where(x < 0, torch.zeros_like(x), x.log()), "log(x)", torch.bfloat16)
    assert len(broken.special) > 30_000
    assert all(row.input < 0 for row in broken.special)
    assert ah.sweep(lambda x: x + 0 * x.isnan(), "x", torch.bfloat16).largest == 0
    capped = ah.sweep(lambda x: x.exp().clamp(max=100), "exp(x)", torch.float16)
    assert any(row.correct == float("inf") for row in capped.special)


def test_heads_of_the_library():
    model = ah.compile("tanh(x)", tol=1e-9)
    found = ah.sweep(model, "tanh(x)", torch.float16)
    assert found.misrounded < 100
    converted = ah.convert(nn.Sequential(nn.Tanh()).bfloat16(), inputs=torch.zeros(1, 4, dtype=torch.bfloat16))
    assert ah.sweep(converted, "tanh(x)", torch.bfloat16).largest < 1


def test_models_say_that_inputs_are_outside_their_domain():
    model = ah.compile("tanh(x)", (-2, 2), tol=1e-3)
    with pytest.warns(ah.OutsideRangeWarning, match="nothing is proved"):
        found = ah.sweep(model, "tanh(x)", torch.float16)
    assert found.domain == (-2, 2)
    assert found.outside == sum(abs(found.places) > 2) > 20_000
    assert "proved on [-2, 2]" in str(found)
    assert found.as_dict()["domain"] == [-2, 2]
    model.outside = "error"
    with pytest.raises(ah.OutsideRangeError):
        ah.sweep(model, "tanh(x)", torch.float16)


def test_it_says_what_it_found():
    found = ah.sweep(F.gelu, "gelu(x)")
    text = str(found)
    assert "ulp" in text
    assert "correctly rounded" in text
    assert set(found.as_dict()) >= {"largest", "misrounded", "worst", "special"}


@pytest.mark.parametrize(("arguments", "match"), [
    ((torch.tanh, "tanh(x)", torch.float32), "bfloat16"), ((torch.tanh, "x*y"), "one number"), ((3, "x"), "function"),
    ((lambda x: x.sum(), "x"), "shape"), ((lambda x: x.float(), "x"), "gave torch.float32"),
    ((lambda x: 1 / 0, "x"), "failed"), ((torch.tanh, 3), "formula"),
])  # fmt: skip
def test_refused_with_a_sentence(arguments, match):
    with pytest.raises(ah.AnchorheadError, match=match):
        ah.sweep(*arguments)


def test_ties_are_decided():
    least = 2.0**-133
    x = torch.tensor([least], dtype=torch.float64)
    assert float(mp.mpf(least) * mp.ncdf(mp.mpf(least))) == least / 2  # and yet above it
    kept, dropped = (ah.sweep(lambda t, v=v: torch.where(t == x.to(t.dtype), v, F.gelu(t)), "gelu(x)")
                     for v in (x.bfloat16(), torch.zeros(1, dtype=torch.bfloat16)))  # fmt: skip
    assert dropped.misrounded == kept.misrounded + 1
