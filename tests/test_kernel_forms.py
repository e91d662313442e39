"""What a kernel computes in another way than plain torch: exp written out, and heads folded without comparisons."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flint import arb
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anchorhead as ah
from anchorhead.enclosure.precision import precision
from anchorhead.head.decay import FAR, POLYNOMIAL, decay, for_kernel
from anchorhead.model import fused

UNIT, LEAST = 2.0**-24, 2.0**-126


def check_decay(t: torch.Tensor) -> None:
    found, exact = decay(t).double(), torch.exp(-t.double())
    normal = found > 0
    assert (found[normal] >= LEAST).all()
    assert ((found / exact - 1)[normal].abs() <= 4 * UNIT).all()
    assert (exact[~normal] < math.sqrt(2) * (1 + 1e-5) * LEAST).all()


def test_exp_is_right_to_two_units_in_the_last_place():
    draw = np.random.default_rng(0)
    bits = draw.integers(0, np.float32(FAR).view(np.int32), size=2_000_000, dtype=np.int32)
    check_decay(torch.from_numpy(bits.view(np.float32)))
    halves = torch.arange(1, 256) * (math.log(2) / 2)  # where t is rounded up or down
    around = torch.arange(-50, 51, dtype=torch.int32)
    near = (halves.float().view(torch.int32).unsqueeze(-1) + around).view(torch.float32)
    check_decay(near[near <= FAR])
    check_decay(torch.linspace(0, FAR, 1_000_001))


@given(st.floats(0, FAR, width=32))
def test_exp_at_any_number(t):
    check_decay(torch.tensor([t]))


def test_its_polynomial_is_proved():
    with precision():
        for i in range(-64, 64):
            r = arb(2 * i + 1, 1) * arb("0.3467") / 128
            middle = arb(2 * i + 1) * arb("0.3467") / 128
            series = [arb(0)] * 9
            for j in range(9):  # Taylor coefficients of P(r)·e^r/2 - 1 at the middle, the last one on the whole box
                at = middle if j < 8 else r
                value = arb(0)
                for k in range(min(j, 6) + 1):
                    power = sum((arb(c) * math.comb(6 - n, k) * at ** (6 - n - k)
                                 for n, c in enumerate(POLYNOMIAL) if 6 - n >= k), arb(0))  # fmt: skip
                    value += power / math.factorial(j - k)
                series[j] = value * at.exp() / 2
            series[0] -= 1
            radius = arb("0.3467") / 128
            assert sum((abs(c) * radius**j for j, c in enumerate(series)), arb(0)) < UNIT / 10


ACTIVATIONS = {"gelu(x)": F.gelu, "silu(x)": F.silu, "sigmoid(x)": torch.sigmoid, "softplus(x)": F.softplus,
               "mish(x)": F.mish}  # fmt: skip


@pytest.mark.parametrize("formula", ACTIVATIONS)
def test_a_kernel_computes_what_plain_torch_does(formula):
    model = ah.compile(formula, tol=1e-6, dtype=torch.float32)
    evaluation = model.head.evaluation()
    draw = torch.Generator().manual_seed(0)
    x = torch.cat([40 * torch.randn(20_000, generator=draw), torch.randn(20_000, generator=draw),
                   torch.tensor([0.0, 1e30, -1e30, 3e38, -3e38, 88.0, -93.0])])  # fmt: skip
    with for_kernel():
        found = evaluation(x)
        assert evaluation(torch.tensor([math.nan])).isnan().all()
    claim, size = model.certificate, 1 + x.double().abs()
    exact = ACTIVATIONS[formula](x.double())
    assert ((found.double() - exact).abs() <= claim.approximation + claim.rounding * size).all()
    assert ((found - evaluation(x)).double().abs() <= 2 * claim.rounding * size).all()


@pytest.mark.heavy
def test_a_kernel_is_for_dtypes_and_sizes_that_it_was_made_for():
    run = fused.fused(
        lambda u, v: (u.float() * v.float()).to(u.dtype), lambda: "a product", torch.ones(8), torch.ones(8)
    )
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        u, v = (torch.randn(20_000, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (0, 1))
        torch.testing.assert_close(run(u, v), (u.float() * v.float()).to(dtype))
    u = torch.randn(20_000)
    torch.testing.assert_close(run(u, torch.full((1,), 3.0)), 3 * u)
    torch.testing.assert_close(run(u[:1], u[1:2]), u[:1] * u[1:2])
    assert run(u[:0], u[:0]).numel() == 0


@pytest.mark.heavy
def test_what_is_looked_at_goes_another_way():
    act = ah.convert(nn.Sequential(nn.GELU()), warm=True)[0]
    x = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(0))
    plain, slope = act.head(x), torch.func.jvp(act.head, (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(torch.func.vmap(act)(x), plain)
    torch.testing.assert_close(torch.func.jvp(act, (x,), (torch.ones_like(x),))[1], slope)
    with torch.autograd.forward_ad.dual_level():
        found = torch.autograd.forward_ad.unpack_dual(act(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))))
    torch.testing.assert_close(found.tangent, slope)
    wanted = x.clone().requires_grad_()
    act(wanted).sum().backward()
    torch.testing.assert_close(wanted.grad, slope)
    torch.testing.assert_close(act(x.t()), plain.t())
    torch.testing.assert_close(act(x), plain)
    assert fused.made(act.head.evaluation())
